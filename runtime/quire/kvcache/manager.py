"""Block tables of sequences: grow them, find their beginnings again, give them back.

The scheduler asks here whether tokens fit, and nothing else about memory. Blocks are published as soon as they are
scheduled, before the step has run: the executor writes a layer's keys of the whole batch before it reads them, so sequences
of one step can share them too. Hence a step that fails must end the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from quire.kvcache.hashing import BlockHasher
from quire.kvcache.pool import Block, BlockPool


class BlockTable:
    """The blocks of one sequence in order, and the keys of its full blocks as far as they were needed."""

    __slots__ = ("block_ids", "blocks", "keys", "num_published", "root")

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.blocks: list[Block] = []
        self.block_ids = array("i")
        self.keys: list[bytes] = []
        self.num_published = 0


class KVCacheManager:
    """Serves block tables from one pool."""

    def __init__(
        self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool = True, secret: bytes | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._hasher = BlockHasher(block_size, secret)

    def table(self, context: bytes = b"") -> BlockTable:
        """An empty table. Only sequences of equal `context` share blocks."""
        return BlockTable(self._hasher.root(context))

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, table: BlockTable, tokens: Sequence[int]) -> list[Block]:
        """Blocks that already hold the beginning of tokens; at least the last token is left to compute."""
        if not self.enable_prefix_caching:
            return []
        usable = len(tokens) - 1
        self._hasher.extend(table.keys, table.root, tokens, usable)
        hits: list[Block] = []
        for key in table.keys[: usable // self.block_size]:
            block = self.pool.find(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def missing_blocks(self, hits: Sequence[Block], num_tokens: int) -> int:
        """Free blocks that a new sequence of num_tokens would use up, given its hits (free ones count too)."""
        return self.blocks_for(num_tokens) - sum(block.references > 0 for block in hits)

    def adopt(self, table: BlockTable, hits: Sequence[Block]) -> int:
        """Begin an empty table with found blocks; the number of tokens they hold."""
        assert not table.blocks
        for block in hits:
            self.pool.hold(block)
        table.blocks.extend(hits)
        table.block_ids.extend(block.id for block in hits)
        table.num_published = len(hits)
        return len(hits) * self.block_size

    def grow(self, table: BlockTable, tokens: Sequence[int], num_tokens: int) -> bool:
        """Make room for tokens[:num_tokens], all or nothing, and publish the blocks they fill."""
        missing = -(-num_tokens // self.block_size) - len(table.blocks)
        if missing > 0:
            if missing > self.pool.num_free:
                return False
            for _ in range(missing):
                block = self.pool.take()
                table.blocks.append(block)
                table.block_ids.append(block.id)
        full = num_tokens // self.block_size
        if full > table.num_published and self.enable_prefix_caching:
            self._hasher.extend(table.keys, table.root, tokens, num_tokens)
            for index in range(table.num_published, full):
                self.pool.publish(table.blocks[index], table.keys[index])
            table.num_published = full
        return True

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, tails first. The keys stay: they name tokens, not blocks."""
        self.pool.release(reversed(table.blocks))
        table.blocks.clear()
        del table.block_ids[:]
        table.num_published = 0
