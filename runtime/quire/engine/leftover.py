"""What weights and activations leave of a budget for a KV pool and its tables, and what is missing there. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quire.engine.budget import Budget
from quire.engine.grammar.limits import needed_memory
from quire.engine.need import Need


@dataclass(frozen=True)
class Leftover:
    """In bytes. total: for a pool and its tables; spare: for tables while weights are read, they are there already then. Below zero where less
    than nothing is left. grammars: what a pool must leave of `total` for structured outputs.
    """

    need: Need
    budget: Budget
    total: int
    spare: int
    grammars: int

    @property
    def fitting(self) -> int:
        """The most blocks for which there is room."""
        return self.need.blocks_in(self.total, self.spare)

    @property
    def modest(self) -> int:
        """Those that leave grammars what they need."""
        return self.need.blocks_in(self.total - self.grammars, self.spare)

    @property
    def worth(self) -> int:
        """A pool of default size has that many blocks before it leaves anything to grammars: what fits into so much memory that they would take half of
        it, or all but a sequence of useful length. That does not depend on what there is, so no pool is smaller in more memory.
        """
        need, share = self.need, self._share
        taken, wanted = self.budget.usable - self.total, needed_memory(need.config, need.facts.vocab_size)
        half = (taken + 2 * wanted) / (2 - share)
        useful = taken + wanted + need.pool_bytes(need.blocks_of(need.useful_len))
        then = int(max(half, useful) * share) - taken
        return need.blocks_in(then, self.spare - self.total + then)

    def missing(self, num_blocks: int, *, by_default: bool, grammars: bool) -> int:
        """Bytes of what is planned that lack for a pool of so many blocks, at most zero where none do. by_default: its size is not asked for.
        grammars: it leaves them what they need."""
        need, budget = self.need, self.budget
        pool = need.pool_bytes(num_blocks)
        lacking = max(pool - self.total, need.table_bytes(num_blocks) - self.spare)
        # More memory is more of what is never planned too, and of what a pool takes by default.
        if grammars and self.grammars:
            lacking = max(lacking, int((pool - self.total + self.grammars) * self._share) + 1)
        if by_default and budget.pool:
            of_pool = budget.pool / budget.available
            default = (num_blocks * need.block_bytes / of_pool - budget.available) * self._share
            lacking = max(lacking, int(default) + 1)
        return lacking

    @property
    def missing_for_asked(self) -> int:
        """For what was asked for, at least a sequence of useful length."""
        need = self.need
        by_default = not need.said_blocks and need.config.max_model_len is None
        num_blocks = need.blocks_of(need.useful_len) if by_default else need.least_blocks
        return self.missing(num_blocks, by_default=by_default, grammars=need.config.grammar_memory is not None)

    @property
    def missing_for_all(self) -> int:
        """For a sequence of the model's length in a pool of default size, and grammars beside it; 0 where a pool or a length was asked for."""
        need = self.need
        if need.said_blocks or need.config.max_model_len is not None or not self.budget.available:
            return 0
        num_blocks = need.blocks_of(need.wanted_len)
        if self.grammars and need.config.grammar_memory is None:
            num_blocks = max(num_blocks, min(self.worth, need.config.max_num_seqs * num_blocks))
        return self.missing(num_blocks, by_default=True, grammars=True)

    @property
    def _share(self) -> float:
        """Of the memory that there is, what is planned; rounded, for bytes are whole."""
        return round(self.budget.usable / self.budget.available, 6) if self.budget.available else 1.0


def kept_for_grammars(need: Need, host: Budget) -> int:
    """Bytes of what is planned of main memory; what is never planned is for structured outputs too."""
    return max(needed_memory(need.config, need.facts.vocab_size) - (host.available - host.usable), 0)


def left_of(need: Need, budget: Budget, swap: int, swap_budget: Budget | None) -> Leftover:
    """swap: bytes of that pool, which has its part of the device's memory unless it lies apart, as grammars do then."""
    beside = need.footprint.weights + need.activation_bytes + (swap if swap_budget is None else 0)
    return Leftover(
        need,
        budget,
        total=budget.usable - beside,
        spare=budget.usable - need.footprint.weights - need.footprint.loading,
        grammars=kept_for_grammars(need, budget) if swap_budget is None else 0,
    )
