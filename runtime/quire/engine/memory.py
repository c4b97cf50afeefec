"""The memory plan: weights, activations and KV pool, summed up before any of it is taken.

Pure arithmetic on facts of a model, a configuration and what the host offers. What does not fit is refused with the sum and the
flag value that would fit; a model's full length shrinks to the pool only where the user did not ask for a length.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, parse_bytes
from quire.engine.host import HostMemory
from quire.engine.sampling.logprobs import ROWS
from quire.engine.sampling.restrict import SORTED_ROWS
from quire.errors import ModelError
from quire.models.executor import Footprint, ModelFacts

LIMIT_SHARE = 0.90
"""Of a container's limit, this much is planned; the rest is for the server process and for what is not counted."""
FREE_SHARE = 0.25
"""Without a limit the machine is shared with others: the pool takes at most this much of what is free."""
LEAST_BUDGET = 64
MIB = 1 << 20


@dataclass(frozen=True)
class MemoryPlan:
    """All in bytes but the last four. `max_model_len` is what the pool can hold of what was asked for.

    tables: cosines and sines of the positions up to that length. swap is part of `available` only where swap_apart is false: a
    GPU's host pool lies in other memory.
    """

    weights: int
    activations: int
    tables: int
    kv_pool: int
    swap: int
    swap_apart: bool
    available: int
    num_blocks: int
    num_swap_blocks: int
    block_size: int
    max_model_len: int

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.tables + self.kv_pool + (0 if self.swap_apart else self.swap)

    def __str__(self) -> str:
        swap = f"swap {_mib(self.swap)} ({self.num_swap_blocks} blocks)" if self.swap else ""
        return (
            f"memory plan: weights {_mib(self.weights)} + activations {_mib(self.activations)} "
            + (f"+ position tables {_mib(self.tables)} " if self.tables else "")
            + f"+ KV pool {_mib(self.kv_pool)} ({self.num_blocks} blocks of {self.block_size} tokens)"
            + (f" + {swap}" if swap and not self.swap_apart else "")
            + f" = {_mib(self.total)} of {_mib(self.available)} available"
            + (f", and {swap} of the host's memory" if swap and self.swap_apart else "")
        )


def plan(
    facts: ModelFacts,
    config: EngineConfig,
    footprint: Footprint,
    *,
    smaller: Footprint | None = None,
    kv_dtype_bytes: int,
    host: HostMemory,
    swap_host: HostMemory | None = None,
) -> MemoryPlan:
    """footprint: of the model; smaller: of the same in bfloat16, where that can be advised. host: the memory of the device.
    swap_host: that of the swap pool, where it is another.

    Raises ModelError where the model, the pools or the wanted length does not fit, saying what would.
    """
    weights = footprint.weights
    activations = activation_bytes(facts, config, footprint)
    block_bytes = facts.kv_elements_per_token() * config.block_size * kv_dtype_bytes
    room = int(host.available * LIMIT_SHARE) - weights - activations
    wanted_len = min(config.max_model_len or facts.max_model_len, facts.max_model_len)
    per_sequence = -(-wanted_len // config.block_size)
    position_bytes = facts.table_elements_per_position() * 4
    block_tables = min(config.block_size, wanted_len) * position_bytes
    num_swap_blocks = _num_swap_blocks(config, block_bytes, room - block_tables, swap_host)
    swap = num_swap_blocks * block_bytes
    if swap_host is None:
        room -= swap
    # tables reach as far as the pool does, at most to the wanted length
    most_tables = min(max(room // (block_bytes + block_tables), 1) * block_tables, wanted_len * position_bytes)
    room -= most_tables
    if room < block_bytes:
        rest = block_bytes + block_tables
        parts = f"weights {_mib(weights)} + activations {_mib(activations)} + one KV block {_mib(rest)}"
        raise ModelError(
            f"{config.model} does not fit the memory: {parts} = {_mib(weights + activations + rest)} are more than "
            f"{LIMIT_SHARE:.0%} of the {_mib(host.available)} that "
            + ("the container's limit leaves" if host.limited else "are free")
            + _remedy(
                facts,
                config,
                host,
                footprint,
                smaller,
                kv_dtype_bytes,
                -room + per_sequence * (block_bytes + block_tables),
            )
        )
    num_blocks = _num_blocks(config, block_bytes, room, host, most=config.max_num_seqs * per_sequence)
    tokens = num_blocks * config.block_size
    if config.max_model_len is not None and tokens < wanted_len:
        need = per_sequence * block_bytes
        raise ModelError(
            f"--max-model-len {wanted_len} needs a KV pool of {_mib(need)} ({per_sequence} blocks), but it has {num_blocks} blocks "
            f"({_mib(num_blocks * block_bytes)}); --max-model-len {tokens} fits"
            + (f", and so does --num-blocks {per_sequence}" if config.num_blocks is not None and need <= room else "")
        )
    return MemoryPlan(
        weights=weights,
        activations=activations,
        tables=min(wanted_len, tokens) * position_bytes,
        kv_pool=num_blocks * block_bytes,
        swap=swap,
        swap_apart=swap_host is not None,
        available=host.available,
        num_blocks=num_blocks,
        num_swap_blocks=num_swap_blocks,
        block_size=config.block_size,
        max_model_len=min(wanted_len, tokens),
    )


def activation_bytes(facts: ModelFacts, config: EngineConfig, footprint: Footprint) -> int:
    """The widest moment of a step of the full budget, and sampling."""
    step = config.max_num_batched_tokens * footprint.activations_per_token
    return step + sampling_bytes(facts, config, footprint.logit)


def sampling_bytes(facts: ModelFacts, config: EngineConfig, logit_bytes: int) -> int:
    """Logits, and what is made of them: up to four float32 copies, and eight words for each of the few rows that are sorted.

    Rows are as many as sequences, whatever the budget (siblings draw from one row of it), or those of a prompt whose log
    probabilities are wanted.
    """
    rows = max(config.max_num_seqs, ROWS)
    return facts.vocab_size * (rows * (logit_bytes + 4 * 4) + SORTED_ROWS * 8 * 4)


def _num_swap_blocks(config: EngineConfig, block_bytes: int, room: int, apart: HostMemory | None) -> int:
    """room: what weights and activations leave of the device's memory, which the swap pool shares unless it lies apart."""
    if config.swap_space is None:
        return 0
    swap = parse_bytes(config.swap_space, flag="--swap-space")
    if swap == 0:
        return 0
    if swap < block_bytes:
        raise ModelError(
            f"--swap-space {config.swap_space} is less than one KV block ({_mib(block_bytes)}); raise it, or leave it out"
        )
    left = max(room - block_bytes if apart is None else int(apart.available * LIMIT_SHARE), 0)
    if swap > left and room >= block_bytes:  # without room for the model itself, that is what must be said
        after = "after weights, activations and one KV block" if apart is None else "of the host's memory"
        raise ModelError(
            f"--swap-space {config.swap_space} does not fit: {after} {_mib(left)} are left; "
            + (f"--swap-space {left // MIB}Mi fits" if left >= max(MIB, block_bytes) else "leave it out")
        )
    return swap // block_bytes


def _num_blocks(config: EngineConfig, block_bytes: int, room: int, host: HostMemory, *, most: int) -> int:
    fitting = room // block_bytes
    if config.num_blocks is not None:
        if config.num_blocks > fitting:
            raise ModelError(
                f"--num-blocks {config.num_blocks} needs {_mib(config.num_blocks * block_bytes)}, but after weights and "
                f"activations{_and_swap(config)} {_mib(room)} are left; --num-blocks {fitting} fits"
            )
        return config.num_blocks
    if config.kv_cache_memory is not None:
        pool = parse_bytes(config.kv_cache_memory, flag="--kv-cache-memory")
        if pool < block_bytes:
            raise ModelError(
                f"--kv-cache-memory {config.kv_cache_memory} is less than one KV block ({_mib(block_bytes)}); raise it"
            )
        if pool > room:
            raise ModelError(
                f"--kv-cache-memory {config.kv_cache_memory} does not fit: after weights and activations{_and_swap(config)} "
                f"{_mib(room)} are left; --kv-cache-memory {room // MIB}Mi fits"
            )
        return pool // block_bytes
    share = room if host.limited else min(room, int(host.available * FREE_SHARE))
    return max(min(share // block_bytes, most), 1)


def _and_swap(config: EngineConfig) -> str:
    return "" if config.swap_space is None else f" and --swap-space {config.swap_space}"


def _remedy(
    facts: ModelFacts,
    config: EngineConfig,
    host: HostMemory,
    footprint: Footprint,
    smaller: Footprint | None,
    kv_dtype_bytes: int,
    missing: int,
) -> str:
    """What would make it fit: a smaller step if that is enough, a smaller type, more memory (for a full-length request)."""
    usable = int(host.available * LIMIT_SHARE)
    budget = config.max_num_batched_tokens
    while (budget := budget // 2) >= LEAST_BUDGET:
        reduced = config.model_copy(
            update={"max_num_batched_tokens": budget, "max_num_seqs": min(config.max_num_seqs, budget)}
        )
        spare = usable - footprint.weights - activation_bytes(facts, reduced, footprint)
        per_token = facts.kv_elements_per_token() * kv_dtype_bytes + facts.table_elements_per_position() * 4
        if spare >= budget * per_token:
            return f"; --max-num-batched-tokens {budget} fits"
    more = f"{'raise the limit' if host.limited else 'free memory'} to {_mib(_target(host, missing))}"
    half = smaller is not None and smaller.weights < min(usable, footprint.weights)
    return f"; {more}" + (", or try --dtype bfloat16" if half else ", or take a smaller model")


def _target(host: HostMemory, missing: int) -> int:
    """Bytes of the limit, or of free memory, that would be enough."""
    return (host.limit if host.limited else host.available) + int(missing / LIMIT_SHARE) + MIB


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / MIB:,.0f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:,.1f} KiB"
