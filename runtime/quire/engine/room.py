"""Whether a waiting sequence may run: places and blocks, with what running ones were promised taken off. Decides, and moves nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from quire.engine.sequence import Sequence
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.pool import Block


class Room:
    """Of one KV cache. max_num_seqs: sequences that may run at once."""

    def __init__(self, kv: KVCacheManager, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self._kv = kv

    def fits(self, sequence: Sequence, hits: list[Block], running: list[Sequence], *, urgent: bool = False) -> bool:
        """Whether it may run now: a place, and blocks for all of its tokens. Alone, any sequence may.

        urgent: it takes blocks that running ones will want; they are preempted then. hits: its blocks in the prefix cache.
        """
        if not running:
            return True
        if self._taken(running) >= self.max_num_seqs:
            return False
        promised = 0 if urgent else sum(map(self._promised, running))
        return self._needed(sequence) - _held(hits, {}) + promised <= self._kv.pool.num_free

    def victims(self, head: Sequence, hits: list[Block], running: list[Sequence], outranked: int) -> int:
        """How many of the last of `running` must go so that `head` may run; 0 where it needs none, or where even all of those
        it outranks are not enough: then nobody's work is thrown away."""
        if not outranked or self.fits(head, hits, running):
            return 0
        rest, needed = len(running) - outranked, self._needed(head)
        num_free = self._kv.pool.num_free
        last = running[rest:]
        if self._taken(running[:rest]) >= self.max_num_seqs or needed > num_free + len(hits) + _num_blocks(last):
            return 0
        given: Counter[Block] = Counter()
        promised = sum(map(self._promised, running))
        taken = self._taken(running)
        for count, victim in enumerate(reversed(last), start=1):
            for block in victim.table.blocks:
                given[block] += 1
                num_free += given[block] == block.references
            promised -= self._promised(victim)
            taken -= 1 + len(victim.followers)
            fits = needed - _held(hits, given) + promised <= num_free
            if count == len(running) or (fits and taken < self.max_num_seqs):
                return count
        return 0

    def forks(self, leader: Sequence, running: list[Sequence]) -> int:
        """Followers that can run beside their leader now; each writes a block of its own next."""
        return min(len(leader.followers), self.max_num_seqs - len(running), self._kv.pool.num_free)

    def _taken(self, running: list[Sequence]) -> int:
        return len(running) + sum(len(other.followers) for other in running)

    def _needed(self, sequence: Sequence) -> int:
        """Blocks of all of its tokens, and of the followers that can find a place."""
        followers = min(len(sequence.followers), self.max_num_seqs - 1)
        return self._kv.blocks_for(len(sequence.tokens) + 1) + followers

    def _promised(self, running: Sequence) -> int:
        """Blocks that a running one has yet to take for what it was admitted with; one to grow at least."""
        return max(self._needed(running) - len(running.table.blocks), 1)


def _held(hits: list[Block], given: dict[Block, int] | Counter[Block]) -> int:
    """Hits that stay held by others when `given` of their holders have gone: those cost no free block."""
    return sum(block.references > given.get(block, 0) for block in hits)


def _num_blocks(sequences: Iterable[Sequence]) -> int:
    return sum(len(sequence.table.blocks) for sequence in sequences)
