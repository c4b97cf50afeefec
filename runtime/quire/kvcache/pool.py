"""The block pool: every block that exists, who holds it, and the order in which unheld ones are taken.

Each block is in exactly one state: held (references > 0), or free. Free blocks form a doubly linked list through the blocks
themselves, so taking, freeing and rescuing one from the middle is O(1). Free blocks that still carry a key can be found
again; they are taken last, least recently used first. Nothing here knows sequences or tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


class Block:
    """A block: its id in the pool's tensors, its holders, and its key while it can be found."""

    __slots__ = ("id", "key", "next", "previous", "references")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.references = 0
        self.key: bytes | None = None
        self.previous: Block | None = None
        self.next: Block | None = None


class BlockPool:
    """`num_blocks` blocks, ids 0 to num_blocks - 1."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least one block, got {num_blocks}")
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.num_blocks = num_blocks
        self.num_free = 0
        self.generation = 0  # how often all was forgotten
        self._by_key: dict[bytes, Block] = {}
        self._sentinel = Block(-1)
        self._sentinel.previous = self._sentinel.next = self._sentinel
        for block in self.blocks:
            self._link_before(self._sentinel, block)

    @property
    def num_used(self) -> int:
        """Blocks held by someone; free blocks that can still be found are not used."""
        return self.num_blocks - self.num_free

    def take(self) -> Block:
        """A free block, now held once; what it kept is forgotten. The caller made sure that there is one."""
        block = self._sentinel.next
        assert block is not None and block is not self._sentinel, "take() from an empty pool"
        self._unlink(block)
        if block.key is not None:
            del self._by_key[block.key]
            block.key = None
        block.references = 1
        return block

    def hold(self, block: Block) -> None:
        """One more holder of a block that was found; a free one leaves the free list."""
        if block.references == 0:
            self._unlink(block)
        block.references += 1

    def release(self, blocks: Iterable[Block]) -> None:
        """One holder less of each. Give a sequence's last block first: then prefixes outlive their tails."""
        for block in blocks:
            assert block.references > 0, f"block {block.id} released by nobody"
            block.references -= 1
            if block.references:
                continue
            if block.key is None:
                first = self._sentinel.next
                assert first is not None
                self._link_before(first, block)
            else:
                self._link_before(self._sentinel, block)

    def find(self, key: bytes) -> Block | None:
        """The block with this content, held or free."""
        return self._by_key.get(key)

    def find_chain(self, keys: list[bytes]) -> list[Block]:
        """The blocks with these contents, up to the first that is missing."""
        found = list(map(self._by_key.get, keys))
        return found[: found.index(None)] if None in found else found  # type: ignore[return-value]

    def publish(self, block: Block, key: bytes) -> None:
        """Let a held block be found, under this name only. A second block with the same content stays unnamed."""
        assert block.references > 0
        if block.key is not None:  # of when it was filled in part
            del self._by_key[block.key]
            block.key = None
        if key not in self._by_key:
            self._by_key[key] = block
            block.key = key

    def forget_all(self) -> None:
        """Nothing can be found any more; who holds what does not change."""
        for block in self._by_key.values():
            block.key = None
        self._by_key.clear()
        self.generation += 1

    def free_blocks(self) -> Iterator[Block]:
        """Free blocks in the order in which they will be taken; ends also where the list is broken."""
        block = self._sentinel.next
        for _ in range(self.num_blocks + 1):
            if block is None or block is self._sentinel:
                return
            yield block
            block = block.next

    def check(self) -> list[str]:
        """Violated invariants, in words; empty where all is well. Linear in the pool: for tests and idle moments."""
        faults: list[str] = []
        free = list(self.free_blocks())
        if len(free) != self.num_free or len({block.id for block in free}) != len(free):
            faults.append(f"{len(free)} blocks in the free list, {self.num_free} counted free")
        faults += [f"block {block.id} is free and held {block.references} times" for block in free if block.references]
        unheld = sum(block.references == 0 for block in self.blocks)
        if unheld != len(free):
            faults.append(f"{unheld} blocks are held by nobody, {len(free)} are in the free list")
        faults += [f"block {b.id} is found under another key" for k, b in self._by_key.items() if b.key != k]
        named = sum(block.key is not None for block in self.blocks)
        if named != len(self._by_key):
            faults.append(f"{named} blocks carry keys, {len(self._by_key)} can be found")
        return faults

    def check_holders(self, holders: Mapping[int, int]) -> list[str]:
        """Blocks whose references differ from how many hold them; holders: by block id, absent is none."""
        return [
            f"block {block.id}: {block.references} references, but {holders.get(block.id, 0)} holders"
            for block in self.blocks
            if block.references != holders.get(block.id, 0)
        ]

    def rebuild(self, holders: Mapping[int, int]) -> None:
        """Set references to what really holds blocks, and make the free list and the names anew from them."""
        self._by_key = {key: block for key, block in self._by_key.items() if block.key == key}
        self.num_free = 0
        self._sentinel.previous = self._sentinel.next = self._sentinel
        named: list[Block] = []
        for block in self.blocks:
            block.references = holders.get(block.id, 0)
            block.previous = block.next = None
            if block.key is not None and self._by_key.get(block.key) is not block:
                block.key = None
            if block.references == 0:
                if block.key is None:
                    self._link_before(self._sentinel, block)
                else:
                    named.append(block)
        for block in named:
            self._link_before(self._sentinel, block)

    def _link_before(self, place: Block, block: Block) -> None:
        before = place.previous
        assert before is not None
        block.previous, block.next = before, place
        before.next = place.previous = block
        self.num_free += 1

    def _unlink(self, block: Block) -> None:
        before, after = block.previous, block.next
        assert before is not None and after is not None
        before.next, after.previous = after, before
        block.previous = block.next = None
        self.num_free -= 1
