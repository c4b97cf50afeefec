"""What a grammar may cost, from the configuration."""

from __future__ import annotations

from quire.config import EngineConfig, parse_bytes
from quire.engine.grammar.protocol import Limits
from quire.errors import ConfigError
from quire.structured import MAX_SPEC_BYTES

MOST_TOTAL = 4 << 30
LEAST_MEMORY = 64 << 20
"""One grammar gets that much, however little the plan leaves."""
MOST_MEMORY = 1 << 30
LEAST_MEMORY_FLAG = 16 << 20
"""Less, and a worker does not even start."""


def total_memory(config: EngineConfig, left: int) -> int:
    """Bytes of all grammars together: half of what the memory plan leaves of main memory, `left`, for others need some too; where the
    memory of one is given, room for those that compile and one more. Raises ConfigError that names the flag."""
    own = _memory_of_one(config)
    return max(min(left // 2, MOST_TOTAL), (own or LEAST_MEMORY) * (config.max_compiling_grammars + 1))


def limits_of(config: EngineConfig, total_bytes: int) -> Limits:
    """total_bytes: as `total_memory` has it. Raises ConfigError that names the flag."""
    spec_bytes = parse_bytes(config.max_grammar_size, flag="--max-grammar-size")
    if not 1 <= spec_bytes <= MAX_SPEC_BYTES:
        raise ConfigError(f"--max-grammar-size must be between 1 and 1Mi, got {config.max_grammar_size}")
    return Limits(
        compile_cpu_s=config.grammar_compile_timeout,
        mask_cpu_s=config.grammar_token_timeout,
        mean_cpu_s=config.grammar_mean_token_time,
        memory_bytes=_memory_of_one(config) or min(total_bytes // (config.max_compiling_grammars + 1), MOST_MEMORY),
        total_bytes=total_bytes,
        num_compiling=config.max_compiling_grammars,
        num_grammars=config.max_grammars,
        spec_bytes=spec_bytes,
    )


def _memory_of_one(config: EngineConfig) -> int | None:
    """What the flag says."""
    if config.grammar_memory is None:
        return None
    memory_bytes = parse_bytes(config.grammar_memory, flag="--grammar-memory")
    if memory_bytes < LEAST_MEMORY_FLAG:
        raise ConfigError(f"--grammar-memory must be at least 16Mi, got {config.grammar_memory}")
    return memory_bytes
