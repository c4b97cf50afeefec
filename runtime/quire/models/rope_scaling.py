"""Rotary embeddings as checkpoints write them: config.json's `rope_scaling`/`rope_parameters`, GGUF's `rope.*` keys."""

from __future__ import annotations

from dataclasses import replace

from quire.errors import ModelError
from quire.models.description import Rope, llama3_factors
from quire.models.metadata import Fields

SUPPORTED = "default, linear, llama3"


def rope_from_config(config: Fields, head_size: int) -> Rope:
    """Kinds: default, linear, llama3. Anything else is refused: a wrong rotation answers nonsense."""
    section = config.section("rope_parameters") or config.section("rope_scaling") or Fields({}, config.path)
    if not 0 < (share := float(config.values.get("partial_rotary_factor", 1.0))) <= 1:
        raise config.bad("partial_rotary_factor", share, "above 0 and at most 1")
    rope = Rope(theta=section.number("rope_theta", config.number("rope_theta", 10_000.0)), dim=int(head_size * share))
    kind = section.values.get("rope_type", section.values.get("type", "default"))
    if kind in ("default", None):
        return rope
    if kind == "linear":
        return replace(rope, scale=section.number("factor"))
    if kind == "llama3":
        factors = llama3_factors(
            rope,
            factor=section.number("factor"),
            low_freq_factor=section.number("low_freq_factor"),
            high_freq_factor=section.number("high_freq_factor"),
            original_len=section.integer("original_max_position_embeddings"),
        )
        return replace(rope, factors=factors)
    raise ModelError(f"{config.path}: rope type {kind!r} is not supported; supported: {SUPPORTED}")


def rope_from_gguf(fields: Fields, prefix: str, dim: int) -> Rope:
    """`<prefix>.rope.scaling.*`; llama3 factors are a tensor in GGUF, which the caller adds."""
    rope = Rope(theta=fields.number(f"{prefix}.rope.freq_base", 10_000.0), dim=dim)
    kind = fields.values.get(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        return replace(rope, scale=fields.number(f"{prefix}.rope.scale_linear", 1.0))
    if kind == "linear":
        return replace(rope, scale=fields.number(f"{prefix}.rope.scaling.factor"))
    raise ModelError(f"{fields.path}: rope scaling {kind!r} is not supported; supported: none, linear, llama3 factors")
