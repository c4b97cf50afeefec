"""Names of blocks: a hash chain over tokens, so that a block's key stands for everything before it as well.

BLAKE2b with 128-bit keys, rooted in a secret of the process: keys cannot be made to collide from outside. What else tells
two prefixes apart (adapter, image content, tenant salt) enters the root as `context`.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16


def prefix_context(cache_salt: str | None = None) -> bytes:
    """What tells equal tokens of different requests apart. Each part has a tag of its own, so no two contexts collide."""
    return b"" if cache_salt is None else b"salt:" + cache_salt.encode("utf-8", "surrogatepass")


class BlockHasher:
    """Makes keys of full blocks. One per process and pool; `secret` is given only by tests."""

    def __init__(self, block_size: int, secret: bytes | None = None) -> None:
        self.block_size = block_size
        self._secret = os.urandom(32) if secret is None else secret

    def root(self, context: bytes = b"") -> bytes:
        """The key before the first block of a sequence."""
        return blake2b(context, digest_size=KEY_BYTES, key=self._secret).digest()

    def extend(self, keys: list[bytes], root: bytes, tokens: Sequence[int], num_tokens: int) -> None:
        """Append the keys of the full blocks within tokens[:num_tokens] that `keys` lacks."""
        size, first = self.block_size, len(keys)
        last = num_tokens // size
        if last <= first:
            return
        raw = array("I", tokens[first * size : last * size]).tobytes()
        previous, width = (keys[-1] if keys else root), 4 * size
        for begin in range(0, len(raw), width):
            previous = blake2b(previous + raw[begin : begin + width], digest_size=KEY_BYTES).digest()
            keys.append(previous)

    def partial(self, previous: bytes, tokens: Sequence[int]) -> bytes:
        """The key of a block that holds these tokens, fewer than fill it, behind the block of key `previous` (or the root)."""
        return blake2b(previous + array("I", tokens).tobytes(), digest_size=KEY_BYTES).digest()
