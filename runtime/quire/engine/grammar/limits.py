"""What grammars may cost, from the configuration and from what the memory plan leaves."""

from __future__ import annotations

from quire.config import EngineConfig, parse_bytes
from quire.engine.grammar.protocol import Limits
from quire.errors import ConfigError, ModelError
from quire.structured import MAX_SPEC_BYTES

MIB = 1 << 20
NURSERY = 24 * MIB
NURSERY_TOKEN = 1280
"""The nursery holds so much, and so much more for each token of the vocabulary. Measured, beside what it reads of files: 23 MiB with 300
tokens, 77 with SmolLM2's 49 152, 91 with Qwen2.5's 151 936, 82 and 205 with 49 152 and 151 936 of up to 14 bytes."""
MOST_TOTAL = 4 << 30
USUAL_MEMORY = 64 * MIB
"""One grammar gets that much where there is room, however little half of it is."""
LEAST_MEMORY = 16 * MIB
"""With less a worker does not even start."""
MOST_MEMORY = 1 << 30


def nursery_memory(vocab_size: int) -> int:
    """Bytes of the process from which workers are forked; they share them."""
    return NURSERY + NURSERY_TOKEN * vocab_size


def needed_memory(config: EngineConfig, vocab_size: int) -> int:
    """Bytes that a memory plan must leave for structured outputs. Raises ConfigError that names the flag."""
    return nursery_memory(vocab_size) + _num_parts(config) * (_memory_of_one(config) or LEAST_MEMORY)


def total_memory(config: EngineConfig, left: int, vocab_size: int) -> int:
    """Bytes of all workers together, beside the nursery. left: of main memory, by the memory plan. Half of it is theirs, for others need
    some too; more where grammars of the usual size, or as large as the flag says, would not fit it. 0: there is too little for any.

    Raises ModelError where it is too little for what the flag says.
    """
    nursery, parts, own = nursery_memory(vocab_size), _num_parts(config), _memory_of_one(config)
    room = left - nursery
    if room < parts * (own or LEAST_MEMORY):
        if own is None:
            return 0
        fits = room // parts // MIB
        raise ModelError(
            f"--grammar-memory {config.grammar_memory} does not fit: it is taken {parts} times (--max-compiling-grammars + 1), with "
            f"{nursery / MIB:,.0f} MiB for the process that they share {(nursery + parts * own) / MIB:,.0f} MiB, but the memory plan leaves "
            f"{max(left, 0) / MIB:,.0f} MiB; "
            + (
                f"--grammar-memory {fits}Mi fits"
                if fits >= LEAST_MEMORY // MIB
                else "leave it out, or take a smaller KV pool"
            )
        )
    return min(max(min(room // 2, MOST_TOTAL), parts * (own or USUAL_MEMORY)), room)


def limits_of(config: EngineConfig, total_bytes: int) -> Limits:
    """total_bytes: as `total_memory` has it. Raises ConfigError that names the flag."""
    spec_bytes = parse_bytes(config.max_grammar_size, flag="--max-grammar-size")
    if not 1 <= spec_bytes <= MAX_SPEC_BYTES:
        raise ConfigError(f"--max-grammar-size must be between 1 and 1Mi, got {config.max_grammar_size}")
    return Limits(
        compile_cpu_s=config.grammar_compile_timeout,
        mask_cpu_s=config.grammar_token_timeout,
        mean_cpu_s=config.grammar_mean_token_time,
        memory_bytes=_memory_of_one(config) or min(total_bytes // _num_parts(config), MOST_MEMORY),
        total_bytes=total_bytes,
        num_compiling=config.max_compiling_grammars,
        num_grammars=config.max_grammars,
        spec_bytes=spec_bytes,
    )


def _num_parts(config: EngineConfig) -> int:
    """As many grammars as are compiled at once, and one more, have room together."""
    return config.max_compiling_grammars + 1


def _memory_of_one(config: EngineConfig) -> int | None:
    """What the flag says."""
    if config.grammar_memory is None:
        return None
    memory_bytes = parse_bytes(config.grammar_memory, flag="--grammar-memory")
    if memory_bytes < LEAST_MEMORY:
        raise ConfigError(f"--grammar-memory must be at least 16Mi, got {config.grammar_memory}")
    return memory_bytes
