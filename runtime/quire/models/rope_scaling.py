"""Rotary embeddings as checkpoints write them: config.json's `rope_parameters`/`rope_scaling`, GGUF's `rope.*` keys.

Kinds and formulas are those of transformers' `modeling_rope_utils`. An unknown kind is refused: a wrong rotation answers
nonsense.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.errors import ModelError
from quire.models.description import Rope
from quire.models.metadata import Fields


@dataclass(frozen=True)
class _Scaling:
    """What a kind of scaling may look at: its own section, the whole configuration, and the unscaled rotation."""

    section: Fields
    config: Fields
    rope: Rope

    @property
    def max_len(self) -> int:
        return self.config.integer("max_position_embeddings", 2048)

    @property
    def original_len(self) -> int:
        """Positions of the first training; Phi-3 writes it beside the section, and that wins."""
        inner = self.section.integer("original_max_position_embeddings", self.max_len)
        return self.config.integer("original_max_position_embeddings", inner)

    def attention_factor(self, otherwise: float) -> float:
        return self.section.number("attention_factor", otherwise)


def rope_from_config(
    config: Fields, head_size: int, *, theta: float = 10_000.0, rotated: float = 1.0, section: Fields | None = None
) -> Rope:
    """The rotation a config.json describes. theta, rotated (share of the head): the architecture's defaults.

    section: the rotation's own section where the architecture has several.
    """
    if section is None:
        section = config.section("rope_parameters") or config.section("rope_scaling") or Fields({}, config.path)
    share = section.number("partial_rotary_factor", config.number("partial_rotary_factor", rotated))
    if share > 1:
        raise config.bad("partial_rotary_factor", share, "above 0 and at most 1")
    rope = Rope(theta=section.number("rope_theta", config.number("rope_theta", theta)), dim=int(head_size * share))
    kind = section.values.get("rope_type", section.values.get("type")) or "default"
    if kind not in SCALINGS:
        raise ModelError(f"{config.path}: rope type {kind!r} is not supported; supported: {', '.join(SCALINGS)}")
    return SCALINGS[kind](_Scaling(section, config, rope))


def rope_from_gguf(fields: Fields, prefix: str, dim: int, factors: tuple[float, ...] = ()) -> Rope:
    """`<prefix>.rope.*`. factors: the tensor that holds llama3's divisors in GGUF."""
    rope = Rope(theta=fields.number(f"{prefix}.rope.freq_base", 10_000.0), dim=dim, factors=factors)
    kind = fields.values.get(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        return replace(rope, scale=fields.number(f"{prefix}.rope.scale_linear", 1.0))
    if kind == "linear":
        return replace(rope, scale=fields.number(f"{prefix}.rope.scaling.factor"))
    raise ModelError(f"{fields.path}: rope scaling {kind!r} is not supported; supported: none, linear, llama3 factors")


def _default(s: _Scaling) -> Rope:
    return s.rope


def _linear(s: _Scaling) -> Rope:
    return replace(s.rope, scale=s.section.number("factor"))


def _llama3(s: _Scaling) -> Rope:
    """Llama 3.1: long wavelengths are divided by `factor`, short ones by 1, between them a smooth passage."""
    factor, low = s.section.number("factor"), s.section.number("low_freq_factor")
    high, length = s.section.number("high_freq_factor"), s.original_len
    divisors = []
    for frequency in s.rope.inverse_frequencies():
        wavelength = 2 * math.pi / frequency
        smooth = min(max((length / wavelength - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return replace(s.rope, factors=tuple(divisors))


SCALINGS: dict[str, Callable[[_Scaling], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
}
