"""The memory plan: weights, activations and KV pool, summed up before any of it is taken.

Pure arithmetic on facts of a model, a configuration and what there is. What does not fit is refused with the sum, and with a
value of the flag at fault that would fit; `advice` says what else would. A model's full length shrinks to the pool only where the
user did not ask for a length.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, parse_bytes
from quire.engine.budget import Budget, at_least, at_most, mib
from quire.engine.grammar.limits import nursery_memory, total_memory
from quire.engine.leftover import Leftover, kept_for_grammars, left_of
from quire.engine.need import Need
from quire.errors import ModelError


class Short(ModelError):
    """The memory is short, and it was not one flag that asked for too much.

    fits: fields of the configuration, and values of them with which it may fit. missing: bytes that would do; 0 where they alone would not. full: the same for a sequence of the
    model's length, where less was asked for; else 0.
    """

    def __init__(
        self, message: str, *, fits: tuple[tuple[str, int | str], ...] = (), missing: int = 0, full: int = 0
    ) -> None:
        super().__init__(message)
        self.fits = fits
        self.missing = missing
        self.full = full


@dataclass(frozen=True)
class MemoryPlan:
    """All in bytes but the last four. `max_model_len` is what the pool can hold of what was asked for.

    tables: cosines and sines of the positions up to that length. swap is part of `available` only where swap_apart is false: a
    GPU's host pool lies in other memory. loading: what is held beside weights and tables while weights are read, before activations and pools.
    grammars: what workers of structured outputs hold at most, of what the plan leaves, beside their nursery; 0: there can be none.
    """

    weights: int
    activations: int
    tables: int
    kv_pool: int
    swap: int
    swap_apart: bool
    loading: int
    grammars: int
    nursery: int
    available: int
    num_blocks: int
    num_swap_blocks: int
    block_size: int
    max_model_len: int

    @property
    def total(self) -> int:
        """While it serves."""
        return self.weights + self.activations + self.tables + self.kv_pool + (0 if self.swap_apart else self.swap)

    @property
    def peak(self) -> int:
        """While it loads and serves."""
        return max(self.total, self.weights + self.tables + self.loading)

    def __str__(self) -> str:
        swap = f"swap {mib(self.swap)} ({self.num_swap_blocks} blocks)" if self.swap else ""
        return (
            f"memory plan: weights {mib(self.weights)} + activations {mib(self.activations)} "
            + (f"+ position tables {mib(self.tables)} " if self.tables else "")
            + f"+ KV pool {mib(self.kv_pool)} ({self.num_blocks} blocks of {self.block_size} tokens)"
            + (f" + {swap}" if swap and not self.swap_apart else "")
            + f" = {mib(self.total)} of {mib(self.available)} available"
            + (f" ({mib(self.peak)} while weights are read)" if self.peak > self.total else "")
            + (f", {swap} of the host's memory" if swap and self.swap_apart else "")
            + (
                f", at most {mib(self.grammars + self.nursery)} beside it for structured outputs"
                if self.grammars
                else ", too little beside it for structured outputs"
            )
        )


def plan(need: Need, budget: Budget, swap_budget: Budget | None = None) -> MemoryPlan:
    """budget: the memory of the device. swap_budget: that of the swap pool, where it is another.

    Raises Short where the model or the wanted length does not fit, ModelError where a flag asks for too much.
    """
    config, footprint, wanted_len = need.config, need.footprint, need.wanted_len
    weights, activations, vocab_size = footprint.weights, need.activation_bytes, need.facts.vocab_size
    if need.said_blocks == 0:
        raise ModelError(
            f"--kv-cache-memory {config.kv_cache_memory} is less than one KV block ({mib(need.block_bytes)}); raise it"
        )
    num_swap_blocks = _num_swap_blocks(need, budget, swap_budget)
    swap = num_swap_blocks * need.block_bytes
    if swap_budget is not None:  # a pool of another memory changes nothing about it
        total_memory(config, swap_budget.available - swap, vocab_size)
    room = left_of(need, budget, swap, swap_budget)
    least, tables = need.pool_bytes(1), need.table_bytes(need.least_blocks)
    if room.total < least or room.spare < tables:
        if room.total < least:
            parts = f": weights {mib(weights)} + activations {mib(activations)} + one KV block {mib(least)}"
            needed = weights + activations + least
        else:
            parts = f" while it is read: weights {mib(weights)} + position tables {mib(tables)} + "
            parts += f"{mib(footprint.loading)} to read the largest of them"
            needed = weights + tables + footprint.loading
        raise Short(
            f"{config.model} does not fit the memory{parts} = {mib(needed)} are more than {budget.words}",
            missing=room.missing_for_asked,
            full=room.missing_for_all,
        )
    num_blocks = _num_blocks(room)
    tokens = num_blocks * config.block_size
    tables, kv_pool = need.table_bytes(num_blocks), num_blocks * need.block_bytes
    if swap_budget is None:
        unplanned = budget.available - weights - activations - tables - kv_pool - swap
    else:
        unplanned = swap_budget.available - swap
    if config.max_model_len is not None and tokens < wanted_len:
        if need.said_blocks is not None:
            total_memory(config, unplanned, vocab_size)  # no other length changes that
        raise _too_long(room, num_blocks)
    return MemoryPlan(
        weights=weights,
        activations=activations,
        tables=tables,
        kv_pool=kv_pool,
        swap=swap,
        swap_apart=swap_budget is not None,
        loading=footprint.loading,
        grammars=total_memory(config, unplanned, vocab_size),
        nursery=nursery_memory(vocab_size),
        available=budget.available,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
        max_model_len=min(wanted_len, tokens),
    )


def missing_for_all(need: Need, budget: Budget, swap_budget: Budget | None = None) -> int:
    """Bytes that would do for a sequence of the model's length and for grammars, where a plan has fewer; 0 where they alone would not."""
    swap = _num_swap_blocks(need, budget, swap_budget) * need.block_bytes
    return max(left_of(need, budget, swap, swap_budget).missing_for_all, 0)


def _too_long(room: Leftover, num_blocks: int) -> Short:
    """The length that was asked for, for a pool of so many blocks."""
    need = room.need
    config, wanted_len, said = need.config, need.wanted_len, need.said_blocks is not None
    per_sequence = need.blocks_of(wanted_len)
    needed = per_sequence * need.block_bytes
    holding = num_blocks if said or config.grammar_memory is None else room.modest
    return Short(
        f"--max-model-len {wanted_len} needs a KV pool of {mib(needed)} ({per_sequence} blocks), but it has {num_blocks} blocks "
        f"({mib(num_blocks * need.block_bytes)})",
        fits=(
            *((("max_model_len", holding * config.block_size),) if holding else ()),
            *_larger_pool(need, per_sequence, room.fitting),
        ),
        missing=0 if said else room.missing_for_asked,
    )


def _num_swap_blocks(need: Need, budget: Budget, apart: Budget | None) -> int:
    """budget: of the device, whose memory the swap pool shares unless it lies apart."""
    config, block_bytes = need.config, need.block_bytes
    if config.swap_space is None:
        return 0
    swap = parse_bytes(config.swap_space, flag="--swap-space")
    if swap == 0:
        return 0
    if swap < block_bytes:
        raise ModelError(
            f"--swap-space {config.swap_space} is less than one KV block ({mib(block_bytes)}); raise it, or leave it out"
        )
    num_blocks = swap // block_bytes
    room = left_of(need, budget, 0, apart).total
    asked = need.said_blocks or (1 if config.max_model_len is None else need.blocks_of(need.wanted_len))
    grammars = 0 if config.grammar_memory is None else kept_for_grammars(need, apart or budget)
    # a pool that does not fit even without it is refused by its own flag
    pool = asked if need.pool_bytes(asked) <= room - (grammars if apart is None else 0) else 1
    left = max((room - need.pool_bytes(pool) if apart is None else apart.usable) - grammars, 0)
    if num_blocks * block_bytes > left and room >= need.pool_bytes(
        1
    ):  # without room for the model itself, that is what must be said
        kept = "one KV block" if pool == 1 else f"{pool} KV blocks"
        after = f"after weights, activations and {kept}" if apart is None else "of the host's memory"
        after += f" and --grammar-memory {config.grammar_memory}" if grammars else ""
        raise ModelError(
            f"--swap-space {config.swap_space} does not fit: {after} {mib(left)} are left; "
            + (f"--swap-space {at_most(left, least=block_bytes)} fits" if left >= block_bytes else "leave it out")
        )
    return num_blocks


def _num_blocks(room: Leftover) -> int:
    """With room for one at least."""
    need, fitting, modest = room.need, room.fitting, room.modest
    config, block_bytes = need.config, need.block_bytes
    said_grammars = config.grammar_memory is not None
    if need.said_blocks is not None and need.said_blocks > fitting:
        most, after = fitting, "after weights and activations" + _and_swap(config)
        if said_grammars and modest:
            most, after = modest, f"{after} and --grammar-memory {config.grammar_memory}"
        left = mib(most * block_bytes)
        if config.num_blocks is not None:
            raise ModelError(
                f"--num-blocks {config.num_blocks} needs {mib(config.num_blocks * block_bytes)}, but {after} {left} are left; "
                f"--num-blocks {most} fits"
            )
        raise ModelError(
            f"--kv-cache-memory {config.kv_cache_memory} does not fit: {after} {left} are left; "
            f"--kv-cache-memory {at_most(most * block_bytes, least=block_bytes)} fits"
        )
    if need.said_blocks is not None:
        return need.said_blocks
    # However modest, a pool holds a sequence of the length that was asked for, and never more than all places can use.
    per_sequence = need.blocks_of(need.wanted_len)
    least = 1 if config.max_model_len is None else per_sequence
    if said_grammars:
        left_blocks = modest or need.blocks_of(need.useful_len)  # none: they are refused, by what a pool of use leaves
    else:
        left_blocks = modest if modest >= room.worth else min(fitting, room.worth)
    usual = min(room.budget.pool // block_bytes, left_blocks, config.max_num_seqs * per_sequence)
    return min(max(usual, least), fitting)


def _and_swap(config: EngineConfig) -> str:
    return "" if config.swap_space is None else f" and --swap-space {config.swap_space}"


def _larger_pool(need: Need, num_blocks: int, fitting: int) -> tuple[tuple[str, int | str], ...]:
    """The flag that said the pool's size, with one of so many blocks, where there is room."""
    if need.said_blocks is None or num_blocks > fitting:
        return ()
    if need.config.num_blocks is not None:
        return (("num_blocks", num_blocks),)
    block_bytes = need.block_bytes
    size = at_least(num_blocks * block_bytes, most=(fitting + 1) * block_bytes - 1)
    return (("kv_cache_memory", size),)
