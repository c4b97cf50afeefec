"""The memory plan: weights, activations and KV pool, summed up before any of it is taken.

Pure arithmetic on facts of a model, a configuration and what there is. What does not fit is refused with the sum, and with a
value of the flag at fault that would fit; `advice` says what else would. A model's full length shrinks to the pool only where the
user did not ask for a length.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, parse_bytes
from quire.engine.budget import Budget, at_least, at_most, mib
from quire.engine.grammar.limits import needed_memory, nursery_memory, total_memory
from quire.engine.need import USEFUL_LEN, Need
from quire.errors import ModelError


class Short(ModelError):
    """The memory is short, and it was not one flag that asked for too much.

    fits: values of flags with which it would fit. missing: bytes that would do; 0 where they alone would not. full: the same for a sequence of the
    model's length, where less was asked for; else 0.
    """

    def __init__(self, message: str, *, fits: tuple[str, ...] = (), missing: int = 0, full: int = 0) -> None:
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
    weights, activations = footprint.weights, need.activation_bytes
    if need.said_blocks == 0:
        raise ModelError(
            f"--kv-cache-memory {config.kv_cache_memory} is less than one KV block ({mib(need.block_bytes)}); raise it"
        )
    room = budget.usable - weights - activations
    num_swap_blocks = _num_swap_blocks(need, room, swap_budget)
    swap = num_swap_blocks * need.block_bytes
    if swap_budget is None:
        room -= swap
    # Of main memory, what is never planned is for structured outputs too.
    grammars = needed_memory(config, need.facts.vocab_size) - (budget.available - budget.usable)
    grammars = max(grammars, 0) if swap_budget is None else 0
    spare = budget.usable - weights - footprint.loading  # while weights are read; the tables are there already
    least, tables = need.pool_bytes(1), need.table_bytes(_least_blocks(need))
    if room < least or spare < tables:
        if room < least:
            parts = f": weights {mib(weights)} + activations {mib(activations)} + one KV block {mib(least)}"
            needed = weights + activations + least
        else:
            parts = f" while it is read: weights {mib(weights)} + position tables {mib(tables)} + "
            parts += f"{mib(footprint.loading)} to read the largest of them"
            needed = weights + tables + footprint.loading
        missing, full = _missing(need, room, spare), _missing_for_all(need, room, spare, budget, grammars)
        raise Short(
            f"{config.model} does not fit the memory{parts} = {mib(needed)} are more than {budget.words}",
            missing=missing,
            full=full,
        )
    fitting = need.blocks_in(room, spare)
    num_blocks = _num_blocks(need, fitting, need.blocks_in(room - grammars, spare), budget)
    tokens = num_blocks * config.block_size
    if config.max_model_len is not None and tokens < wanted_len:
        per_sequence = need.blocks_of(wanted_len)
        needed = per_sequence * need.block_bytes
        raise Short(
            f"--max-model-len {wanted_len} needs a KV pool of {mib(needed)} ({per_sequence} blocks), but it has {num_blocks} blocks "
            f"({mib(num_blocks * need.block_bytes)})",
            fits=(f"--max-model-len {tokens}", *_larger_pool(need, per_sequence, fitting)),
            missing=0 if need.said_blocks is not None else _missing(need, room, spare),
        )
    tables = need.table_bytes(num_blocks)
    kv_pool = num_blocks * need.block_bytes
    if swap_budget is None:
        unplanned = budget.available - weights - activations - tables - kv_pool - swap
    else:
        unplanned = swap_budget.available - swap
    return MemoryPlan(
        weights=weights,
        activations=activations,
        tables=tables,
        kv_pool=kv_pool,
        swap=swap,
        swap_apart=swap_budget is not None,
        loading=footprint.loading,
        grammars=total_memory(config, unplanned, need.facts.vocab_size),
        nursery=nursery_memory(need.facts.vocab_size),
        available=budget.available,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
        max_model_len=min(wanted_len, tokens),
    )


def _least_blocks(need: Need) -> int:
    """With fewer it does not start."""
    if need.config.max_model_len is not None:
        return need.said_blocks or need.blocks_of(need.wanted_len)
    return need.said_blocks or 1


def _missing(need: Need, room: int, spare: int) -> int:
    """Bytes that are missing for what was asked for, at least a sequence of useful length. room: what is left for pool and tables,
    spare: for tables while weights are read; below zero where less than nothing is."""
    asked = need.said_blocks or need.config.max_model_len is not None
    blocks = _least_blocks(need) if asked else need.blocks_of(min(USEFUL_LEN, need.wanted_len))
    return max(need.pool_bytes(blocks) - room, need.table_bytes(blocks) - spare)


def _missing_for_all(need: Need, room: int, spare: int, budget: Budget, grammars: int) -> int:
    """The same for a sequence of the model's length in a pool of default size, which leaves grammars what they need; 0 where a pool or a
    length was asked for."""
    if need.said_blocks or need.config.max_model_len is not None or not budget.available:
        return 0
    blocks = need.blocks_of(need.wanted_len)
    lacking = max(need.pool_bytes(blocks) - room, need.table_bytes(blocks) - spare)
    # More memory is more of what is never planned too, and of what a pool takes by default.
    share, of_pool = budget.usable / budget.available, budget.pool / budget.available
    beside = need.pool_bytes(blocks) - room + grammars
    default = (blocks * need.block_bytes / of_pool - budget.available) * share
    return max(lacking, int(beside * share) + 1 if grammars else 0, int(default) + 1)


def _num_swap_blocks(need: Need, room: int, apart: Budget | None) -> int:
    """room: what weights and activations leave of the device's memory, which the swap pool shares unless it lies apart."""
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
    asked = need.said_blocks or (1 if config.max_model_len is None else need.blocks_of(need.wanted_len))
    # a pool that does not fit even without it is refused by its own flag
    pool = asked if need.pool_bytes(asked) <= room else 1
    left = max(room - need.pool_bytes(pool) if apart is None else apart.usable, 0)
    if num_blocks * block_bytes > left and room >= need.pool_bytes(
        1
    ):  # without room for the model itself, that is what must be said
        kept = "one KV block" if pool == 1 else f"{pool} KV blocks"
        after = f"after weights, activations and {kept}" if apart is None else "of the host's memory"
        raise ModelError(
            f"--swap-space {config.swap_space} does not fit: {after} {mib(left)} are left; "
            + (f"--swap-space {at_most(left, least=block_bytes)} fits" if left >= block_bytes else "leave it out")
        )
    return num_blocks


def _num_blocks(need: Need, fitting: int, modest: int, budget: Budget) -> int:
    """fitting: the most for which there is room, at least one. modest: those that leave grammars what they need, as a pool of default size
    does where it is worth having then."""
    config, block_bytes = need.config, need.block_bytes
    room = fitting * block_bytes
    if config.num_blocks is not None:
        if config.num_blocks > fitting:
            raise ModelError(
                f"--num-blocks {config.num_blocks} needs {mib(config.num_blocks * block_bytes)}, but after weights and "
                f"activations{_and_swap(config)} {mib(room)} are left; --num-blocks {fitting} fits"
            )
        return config.num_blocks
    if config.kv_cache_memory is not None:
        pool = parse_bytes(config.kv_cache_memory, flag="--kv-cache-memory")
        if pool // block_bytes > fitting:
            raise ModelError(
                f"--kv-cache-memory {config.kv_cache_memory} does not fit: after weights and activations{_and_swap(config)} "
                f"{mib(room)} are left; --kv-cache-memory {at_most(room, least=block_bytes)} fits"
            )
        return pool // block_bytes
    # However modest, a pool holds a sequence of the length that was asked for, and never more than all places can use.
    per_sequence = need.blocks_of(need.wanted_len)
    least = 1 if config.max_model_len is None else per_sequence
    worth = max(fitting // 2, min(need.blocks_of(USEFUL_LEN), per_sequence))
    left = modest if modest >= worth or config.grammar_memory is not None else fitting
    usual = min(budget.pool // block_bytes, left, config.max_num_seqs * per_sequence)
    return min(max(usual, least), fitting)


def _and_swap(config: EngineConfig) -> str:
    return "" if config.swap_space is None else f" and --swap-space {config.swap_space}"


def _larger_pool(need: Need, num_blocks: int, fitting: int) -> tuple[str, ...]:
    """The flag that said the pool's size, with one of so many blocks, where there is room."""
    if need.said_blocks is None or num_blocks > fitting:
        return ()
    if need.config.num_blocks is not None:
        return (f"--num-blocks {num_blocks}",)
    block_bytes = need.block_bytes
    return (f"--kv-cache-memory {at_least(num_blocks * block_bytes, most=(fitting + 1) * block_bytes - 1)}",)
