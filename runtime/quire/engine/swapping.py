"""Which preempted sequences keep what they have computed in the host pool, and how it comes back. Bookkeeping only."""

from __future__ import annotations

from quire.engine.costs import PreemptionCosts
from quire.engine.plan import StepPlan
from quire.engine.sequence import Sequence
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.swap import SwapSpace


class Swapper:
    """Swaps sequences of one KV cache. space: None where there is no host pool, then nothing is ever swapped.

    num_swapped: sequences that hold host blocks.
    """

    def __init__(self, kv: KVCacheManager, space: SwapSpace | None, costs: PreemptionCosts) -> None:
        self.space = space
        self.num_swapped = 0
        self._kv = kv
        self._costs = costs

    def put_out(self, plan: StepPlan, sequence: Sequence) -> bool:
        """Store what a sequence has computed, where there is room and it is cheaper than computing it again."""
        num_blocks = self._kv.blocks_for(sequence.num_computed)
        if self.space is None or not num_blocks or not self._costs.swap_is_cheaper(sequence.num_computed, num_blocks):
            return False
        stored = self.space.store(sequence.table.block_ids[:num_blocks], plan.swap_outs)
        if stored is None:
            return False
        sequence.host_blocks = stored
        sequence.host_generation = self._kv.pool.generation
        self.num_swapped += 1
        return True

    def bring_back(self, plan: StepPlan, sequence: Sequence, num_found: int) -> None:
        """Move back what the prefix cache does not hold any more; num_found: tokens whose blocks the table begins with."""
        assert self.space is not None
        table, stored = sequence.table, sequence.num_computed
        if stored > num_found:
            table.generation = sequence.host_generation  # where all was forgotten meanwhile, its blocks stay unnamed
            grown = self._kv.grow(table, sequence.tokens, num_found, stored, plan.copies)
            assert grown, "an admitted sequence fits the pool"
        first = num_found // self._kv.block_size if stored > num_found else len(sequence.host_blocks)
        self.space.restore(sequence.host_blocks, table.block_ids, first, plan.swap_ins)
        self.num_swapped -= 1
        sequence.num_computed = max(num_found, stored)

    def drop(self, sequence: Sequence) -> None:
        """A swapped sequence has ended."""
        assert self.space is not None
        self.space.drop(sequence.host_blocks)
        self.num_swapped -= 1
