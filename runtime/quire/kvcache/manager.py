"""Block tables of sequences: grow them, find their beginnings again, give them back.

The scheduler asks here whether tokens fit, and nothing else about memory. Blocks are published as soon as they are
scheduled, before the step has run: the executor writes a layer's keys of the whole batch before it reads them, so sequences
of one step can share them too. Hence a step that fails must end the process.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from quire.kvcache.hashing import BlockHasher
from quire.kvcache.pool import Block, BlockPool
from quire.kvcache.swap import Pairs


class BlockTable:
    """The blocks of one sequence in order, and the keys of its full blocks as far as they were needed.

    generation: the pool's when the blocks were taken; another one means that all has been forgotten meanwhile.
    own_until: a step that ends before this position needs no `grow`: the last block is this sequence's alone, and is not
    filled yet.
    """

    __slots__ = ("block_ids", "blocks", "generation", "keys", "num_published", "own_until", "root")

    def __init__(self, root: bytes, generation: int) -> None:
        self.root = root
        self.generation = generation
        self.blocks: list[Block] = []
        self.block_ids = array("i")
        self.keys: list[bytes] = []
        self.num_published = 0
        self.own_until = 0


class Hits(NamedTuple):
    """Blocks that hold the first `num_tokens` tokens of a sequence: full ones, and one behind them that is filled in part.

    The latter spares no block: the sequence writes into it, or into a copy where others hold it.
    """

    full: list[Block]
    tail: Block | None
    num_tokens: int


NO_HITS = Hits([], None, 0)


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
        return BlockTable(self._hasher.root(context), self.pool.generation)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find_prefix(self, table: BlockTable, tokens: Sequence[int]) -> Hits:
        """What already holds the beginning of tokens; at least the last token is left to compute."""
        if not self.enable_prefix_caching:
            return NO_HITS
        usable, size = len(tokens) - 1, self.block_size
        self._hasher.extend(table.keys, table.root, tokens, usable)
        blocks = self.pool.find_chain(table.keys[: usable // size])
        known = len(blocks) * size
        previous = table.keys[len(blocks) - 1] if blocks else table.root
        for end in range(min(known + size - 1, usable), known, -1):
            tail = self.pool.find(self._hasher.partial(previous, tokens[known:end]))
            if tail is not None:
                return Hits(blocks, tail, end)
        return Hits(blocks, None, known)

    def adopt(self, table: BlockTable, hits: Hits) -> int:
        """Begin an empty table with found blocks; the number of tokens they hold. `grow` comes next, before anybody else's."""
        assert not table.blocks
        table.blocks.extend(hits.full if hits.tail is None else [*hits.full, hits.tail])
        for block in table.blocks:
            self.pool.hold(block)
            table.block_ids.append(block.id)
        table.num_published = len(hits.full)
        table.generation = self.pool.generation
        return hits.num_tokens

    def fork(self, parent: BlockTable, child: BlockTable) -> None:
        """Begin an empty table with all blocks of another one, the partly filled last one included."""
        assert not child.blocks
        for block in parent.blocks:
            self.pool.hold(block)
        child.blocks.extend(parent.blocks)
        child.block_ids.extend(parent.block_ids)
        child.keys[:] = parent.keys
        child.num_published = parent.num_published
        child.generation = parent.generation
        parent.own_until = child.own_until = 0

    def grow(self, table: BlockTable, tokens: Sequence[int], start: int, end: int, copies: Pairs) -> bool:
        """Make room for writing tokens[start:end], all or nothing, and publish the blocks they fill.

        A block that others hold too is not written: the sequence gets one of its own, and the pair (from, to) is added to
        copies. Only the block of tokens[start] can be one, as all later ones are new.
        """
        size, blocks = self.block_size, table.blocks
        first, num_blocks = start // size, len(blocks)
        missing = -(-end // size) - num_blocks
        shared = first < num_blocks and blocks[first].references > 1
        if missing > 0 or shared:
            pool = self.pool
            if max(missing, 0) + shared > pool.num_free:
                return False
            if shared:
                own = pool.take()
                copies.append((blocks[first].id, own.id))
                pool.release((blocks[first],))
                blocks[first] = own
                table.block_ids[first] = own.id
            for _ in range(missing):
                block = pool.take()
                blocks.append(block)
                table.block_ids.append(block.id)
        full = end // size
        if full > table.num_published and self._may_publish(table):
            self._hasher.extend(table.keys, table.root, tokens, end)
            for index in range(table.num_published, full):
                self.pool.publish(blocks[index], table.keys[index])
            table.num_published = full
        table.own_until = len(blocks) * size
        return True

    def publish_tail(self, table: BlockTable, tokens: Sequence[int], num_computed: int) -> None:
        """Let the block that is filled in part be found too, by the tokens computed in it: its sequence has ended.

        Others that hold it write behind these tokens only, so the name stays true until the block is full.
        """
        full = num_computed // self.block_size
        computed = tokens[full * self.block_size : num_computed]
        if computed and self._may_publish(table) and table.num_published == full < len(table.blocks):
            previous = table.keys[full - 1] if full else table.root
            self.pool.publish(table.blocks[full], self._hasher.partial(previous, computed))

    def _may_publish(self, table: BlockTable) -> bool:
        """What is behind tokens that were computed before all was forgotten stays unnamed too."""
        return self.enable_prefix_caching and table.generation == self.pool.generation

    def release(self, table: BlockTable) -> None:
        """Give all blocks back, tails first. The keys stay: they name tokens, not blocks."""
        self.pool.release(reversed(table.blocks))
        table.blocks.clear()
        del table.block_ids[:]
        table.num_published = 0
        table.own_until = 0
