"""Move whole KV blocks, all layers at once: copy-on-write within the device's pool, swaps between it and the host's.

Blocks are told by pairs of ids. Everything is read before anything is written, so a block may be left and entered in
one call; no block is entered twice.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from quire.models.executor import KVPool

Pairs = Sequence[tuple[int, int]]


def move_blocks(source: KVPool, target: KVPool, pairs: Pairs) -> None:
    """Copy blocks (from, to) of source into target, which may be the same pool."""
    if not pairs:
        return
    leaving, entering = (torch.tensor(ids, dtype=torch.int64) for ids in zip(*pairs, strict=True))
    for here, there in ((source.keys, target.keys), (source.values, target.values)):
        for old, new in zip(here, there, strict=True):
            moved = old.index_select(0, leaving.to(old.device))
            new.index_copy_(0, entering.to(new.device), moved.to(new.device))  # waits: the source is reused at once


def measure_swap(device: KVPool, host: KVPool, num_blocks: int = 8) -> float:
    """Seconds to move one block one way, the mean of some there and back. Blocks 0 to num_blocks - 1 are left as they are."""
    count = min(num_blocks, len(device.keys[0]), len(host.keys[0]))
    pairs = [(index, index) for index in range(count)]
    move_blocks(device, host, pairs)  # the first touch of memory is not what a swap costs
    began = time.monotonic()
    move_blocks(device, host, pairs)
    move_blocks(host, device, pairs)
    if device.keys[0].is_cuda:
        torch.cuda.synchronize()
    return (time.monotonic() - began) / (2 * count)
