"""What a grammar may cost, from the configuration."""

from __future__ import annotations

from quire.config import EngineConfig, parse_bytes
from quire.engine.grammar.protocol import Limits
from quire.engine.host import HostMemory
from quire.errors import ConfigError
from quire.structured import MAX_SPEC_BYTES

MEMORY_SHARE = 8
LEAST_MEMORY, MOST_MEMORY = 128 << 20, 1 << 30
LEAST_MEMORY_FLAG = 16 << 20
"""Less, and a worker does not even start."""


def limits_of(config: EngineConfig, host: HostMemory) -> Limits:
    """host: what this process may use. Raises ConfigError that names the flag."""
    spec_bytes = parse_bytes(config.max_grammar_size, flag="--max-grammar-size")
    if not 1 <= spec_bytes <= MAX_SPEC_BYTES:
        raise ConfigError(f"--max-grammar-size must be between 1 and 1Mi, got {config.max_grammar_size}")
    if config.grammar_memory is None:
        memory_bytes = min(max(host.available // MEMORY_SHARE, LEAST_MEMORY), MOST_MEMORY)
    else:
        memory_bytes = parse_bytes(config.grammar_memory, flag="--grammar-memory")
        if memory_bytes < LEAST_MEMORY_FLAG:
            raise ConfigError(f"--grammar-memory must be at least 16Mi, got {config.grammar_memory}")
    return Limits(
        compile_cpu_s=config.grammar_compile_timeout,
        mask_cpu_s=config.grammar_token_timeout,
        mean_cpu_s=config.grammar_mean_token_time,
        memory_bytes=memory_bytes,
        num_compiling=config.max_compiling_grammars,
        num_grammars=config.max_grammars,
        spec_bytes=spec_bytes,
    )
