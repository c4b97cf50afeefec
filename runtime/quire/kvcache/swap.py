"""The host pool: where the blocks of preempted sequences wait until there is room for them again.

Bookkeeping only. Blocks are moved by whoever executes the pairs that come out of here, in this order within a step: swap
out, copy, swap in. So a block that is given up may be taken again in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.kvcache.pool import Block, BlockPool

Pairs = list[tuple[int, int]]
"""Block ids, from and to."""


class SwapSpace:
    """`num_blocks` host blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks)

    def store(self, block_ids: Sequence[int], pairs: Pairs) -> list[Block] | None:
        """Host blocks for these device blocks, in their order, the moves added to pairs; None where there are too few."""
        if len(block_ids) > self.pool.num_free:
            return None
        blocks = [self.pool.take() for _ in block_ids]
        pairs.extend((device, host.id) for device, host in zip(block_ids, blocks, strict=True))
        return blocks

    def restore(self, blocks: list[Block], block_ids: Sequence[int], first: int, pairs: Pairs) -> None:
        """Move stored blocks from index `first` on to a sequence's device blocks; those before it were found there. All
        are free again."""
        pairs.extend((blocks[index].id, block_ids[index]) for index in range(first, len(blocks)))
        self.drop(blocks)

    def drop(self, blocks: list[Block]) -> None:
        """Nobody needs them any more."""
        self.pool.release(blocks)
        blocks.clear()
