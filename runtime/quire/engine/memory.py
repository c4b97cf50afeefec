"""The memory plan: weights, activations and KV pool, summed up before any of it is taken.

Pure arithmetic on facts of a model, a configuration and what there is. What does not fit is refused with the sum and the
flag value that would fit; a model's full length shrinks to the pool only where the user did not ask for a length.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, parse_bytes
from quire.engine.budget import MIB, Budget, mib
from quire.engine.grammar.limits import needed_memory, nursery_memory, total_memory
from quire.engine.sampling.logprobs import ROWS
from quire.engine.sampling.restrict import SORTED_ROWS
from quire.errors import ModelError
from quire.models.executor import Footprint, ModelFacts

LEAST_STEP = 64
"""No smaller token budget is advised."""
USEFUL_LEN = 512
"""A pool of fewer tokens leaves nothing to grammars."""


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


def plan(
    facts: ModelFacts,
    config: EngineConfig,
    footprint: Footprint,
    *,
    smaller: Footprint | None = None,
    kv_dtype_bytes: int,
    budget: Budget,
    swap_budget: Budget | None = None,
) -> MemoryPlan:
    """footprint: of the model; smaller: of the same in bfloat16, where that can be advised. budget: the memory of the device.
    swap_budget: that of the swap pool, where it is another.

    Raises ModelError where the model, the pools or the wanted length does not fit, saying what would.
    """
    weights = footprint.weights
    activations = activation_bytes(facts, config, footprint)
    block_bytes = facts.kv_elements_per_token() * config.block_size * kv_dtype_bytes
    room = budget.usable - weights - activations
    wanted_len = min(config.max_model_len or facts.max_model_len, facts.max_model_len)
    per_sequence = -(-wanted_len // config.block_size)
    position_bytes = facts.table_elements_per_position() * 4
    block_tables = min(config.block_size, wanted_len) * position_bytes
    whole = per_sequence * (block_bytes + block_tables)  # a sequence of the wanted length
    num_swap_blocks = _num_swap_blocks(config, block_bytes, room - block_tables, swap_budget)
    swap = num_swap_blocks * block_bytes
    if swap_budget is None:
        room -= swap
    # Of main memory, what is never planned is for structured outputs too.
    grammars = needed_memory(config, facts.vocab_size) - (budget.available - budget.usable)
    grammars = max(grammars, 0) if swap_budget is None else 0
    left = room
    # tables reach as far as the pool does, at most to the wanted length
    room -= min(max(room // (block_bytes + block_tables), 1) * block_tables, wanted_len * position_bytes)
    if room < block_bytes:
        rest = block_bytes + block_tables
        parts = f"weights {mib(weights)} + activations {mib(activations)} + one KV block {mib(rest)}"
        raise ModelError(
            f"{config.model} does not fit the memory: {parts} = {mib(weights + activations + rest)} are more than {budget.words}"
            + _remedy(
                facts,
                config,
                budget,
                footprint,
                smaller,
                kv_dtype_bytes,
                more=budget.more(whole + grammars - room) or budget.more(block_bytes - room),
            )
        )
    num_blocks = _num_blocks(config, block_bytes, room, budget, per_sequence, grammars)
    tokens = num_blocks * config.block_size
    if config.max_model_len is not None and tokens < wanted_len:
        needed = per_sequence * block_bytes
        raise ModelError(
            f"--max-model-len {wanted_len} needs a KV pool of {mib(needed)} ({per_sequence} blocks), but it has {num_blocks} blocks "
            f"({mib(num_blocks * block_bytes)}); --max-model-len {tokens} fits"
            + _or_larger(config, needed, per_sequence, fits=needed <= room, more=budget.more(whole - left))
        )
    tables = min(wanted_len, tokens) * position_bytes
    kv_pool = num_blocks * block_bytes
    if swap_budget is None:
        unplanned = budget.available - weights - activations - tables - kv_pool - swap
    else:
        unplanned = swap_budget.available - swap
    found = MemoryPlan(
        weights=weights,
        activations=activations,
        tables=tables,
        kv_pool=kv_pool,
        swap=swap,
        swap_apart=swap_budget is not None,
        loading=footprint.loading,
        grammars=total_memory(config, unplanned, facts.vocab_size),
        nursery=nursery_memory(facts.vocab_size),
        available=budget.available,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
        max_model_len=min(wanted_len, tokens),
    )
    if found.peak > budget.usable:
        half = smaller is not None and smaller.weights + smaller.loading <= budget.usable
        raise ModelError(
            f"{config.model} does not fit the memory while it is read: weights {mib(weights)} + position tables {mib(found.tables)} + "
            f"{mib(found.loading)} to read the largest of them = {mib(found.peak)} are more than {budget.words}"
            + _or_smaller(budget.more(found.peak - budget.usable), half=half)
        )
    return found


def activation_bytes(facts: ModelFacts, config: EngineConfig, footprint: Footprint) -> int:
    """The widest moment of a step of the full budget, and sampling."""
    step = config.max_num_batched_tokens * footprint.activations_per_token + footprint.activations_per_step
    return step + sampling_bytes(facts, config, footprint.logit)


def sampling_bytes(facts: ModelFacts, config: EngineConfig, logit_bytes: int) -> int:
    """Logits, and what is made of them: up to four float32 copies, and eight words for each of the few rows that are sorted.

    Rows are as many as sequences, whatever the budget (siblings draw from one row of it), or those of a prompt whose log
    probabilities are wanted.
    """
    rows = max(config.max_num_seqs, ROWS)
    return facts.vocab_size * (rows * (logit_bytes + 4 * 4) + SORTED_ROWS * 8 * 4)


def _num_swap_blocks(config: EngineConfig, block_bytes: int, room: int, apart: Budget | None) -> int:
    """room: what weights and activations leave of the device's memory, which the swap pool shares unless it lies apart."""
    if config.swap_space is None:
        return 0
    swap = parse_bytes(config.swap_space, flag="--swap-space")
    if swap == 0:
        return 0
    if swap < block_bytes:
        raise ModelError(
            f"--swap-space {config.swap_space} is less than one KV block ({mib(block_bytes)}); raise it, or leave it out"
        )
    left = max(room - block_bytes if apart is None else apart.usable, 0)
    if swap > left and room >= block_bytes:  # without room for the model itself, that is what must be said
        after = "after weights, activations and one KV block" if apart is None else "of the host's memory"
        raise ModelError(
            f"--swap-space {config.swap_space} does not fit: {after} {mib(left)} are left; "
            + (f"--swap-space {left // MIB}Mi fits" if left >= max(MIB, block_bytes) else "leave it out")
        )
    return swap // block_bytes


def _num_blocks(
    config: EngineConfig, block_bytes: int, room: int, budget: Budget, per_sequence: int, grammars: int
) -> int:
    """room holds one block at least. per_sequence: blocks of a sequence of the wanted length. grammars: what a pool of default size
    leaves of it to them, if it is worth having then."""
    fitting = room // block_bytes
    if config.num_blocks is not None:
        if config.num_blocks > fitting:
            raise ModelError(
                f"--num-blocks {config.num_blocks} needs {mib(config.num_blocks * block_bytes)}, but after weights and "
                f"activations{_and_swap(config)} {mib(room)} are left; --num-blocks {fitting} fits"
            )
        return config.num_blocks
    if config.kv_cache_memory is not None:
        pool = parse_bytes(config.kv_cache_memory, flag="--kv-cache-memory")
        if pool < block_bytes:
            raise ModelError(
                f"--kv-cache-memory {config.kv_cache_memory} is less than one KV block ({mib(block_bytes)}); raise it"
            )
        if pool > room:
            raise ModelError(
                f"--kv-cache-memory {config.kv_cache_memory} does not fit: after weights and activations{_and_swap(config)} "
                f"{mib(room)} are left; --kv-cache-memory {room // MIB}Mi fits"
            )
        return pool // block_bytes
    # However modest, a pool holds a sequence of the length that was asked for, and never more than all places can use.
    least = 1 if config.max_model_len is None else per_sequence
    worth = max(room // 2, min(-(-USEFUL_LEN // config.block_size), per_sequence) * block_bytes)
    left = room - grammars if room - grammars >= worth or config.grammar_memory is not None else room
    usual = min(budget.pool // block_bytes, left // block_bytes, config.max_num_seqs * per_sequence)
    return min(max(usual, least), fitting)


def _and_swap(config: EngineConfig) -> str:
    return "" if config.swap_space is None else f" and --swap-space {config.swap_space}"


def _remedy(
    facts: ModelFacts,
    config: EngineConfig,
    budget: Budget,
    footprint: Footprint,
    smaller: Footprint | None,
    kv_dtype_bytes: int,
    *,
    more: str,
) -> str:
    """What would make it fit: a smaller step if that is enough, a smaller type, more memory."""
    tokens = config.max_num_batched_tokens
    while (tokens := tokens // 2) >= LEAST_STEP:
        reduced = config.model_copy(
            update={"max_num_batched_tokens": tokens, "max_num_seqs": min(config.max_num_seqs, tokens)}
        )
        spare = budget.usable - footprint.weights - activation_bytes(facts, reduced, footprint)
        per_token = facts.kv_elements_per_token() * kv_dtype_bytes + facts.table_elements_per_position() * 4
        if spare >= tokens * per_token:
            return f"; --max-num-batched-tokens {tokens} fits"
    half = smaller is not None and smaller.weights < min(budget.usable, footprint.weights)
    return _or_smaller(more, half=half)


def _or_larger(config: EngineConfig, needed: int, num_blocks: int, *, fits: bool, more: str) -> str:
    """What holds a sequence of the wanted length: the pool as large as that, where its size was said; else more memory."""
    if config.num_blocks is None and config.kv_cache_memory is None:
        return f", or {more}" if more else ""
    if not fits:
        return ""
    if config.num_blocks is not None:
        return f", and so does --num-blocks {num_blocks}"
    return f", and so does --kv-cache-memory {-(-needed // MIB)}Mi"


def _or_smaller(more: str, *, half: bool) -> str:
    return "; " + (f"{more}, or " if more else "") + ("try --dtype bfloat16" if half else "take a smaller model")
