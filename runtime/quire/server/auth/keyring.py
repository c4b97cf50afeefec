"""The keys of the flags and of the key file, which is read again when it changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from quire.server.auth.keys import Key, KeySet, Principal, digest_of, keys_of
from quire.server.auth.rates import Limits
from quire.server.watched import Watched, read_text

MAX_FILE_BYTES = 32 << 20


class Keyring:
    """See the module. keys: of the flags, as they are. Raises ConfigError."""

    def __init__(
        self,
        keys: Sequence[str],
        file: str | None,
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        own = [Key(digest_of(key), Principal(f"key-{n}", limits)) for n, key in enumerate(keys, 1)]
        files = [] if file is None else [Path(file)]

        def read() -> KeySet:
            found = list(own)
            for one in files:
                text = read_text(one, flag="--api-key-file", max_bytes=MAX_FILE_BYTES)
                found += keys_of(text, source=f"--api-key-file {one}", defaults=limits)
            return KeySet(found)

        self._keys = Watched("the list of keys", files, read, clock=clock)

    def find(self, given: bytes) -> Principal | None:
        """Whose key this is."""
        return self._keys.value.find(given)
