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


def stretched_len(config: Fields) -> int:
    """Positions a config.json declares: of dynamic NTK and yarn those of the training times the factor, where that is more."""
    length = config.integer("max_position_embeddings", 2048)
    section = config.section("rope_parameters") or config.section("rope_scaling") or Fields({}, config.path)
    kind = section.values.get("rope_type", section.values.get("type"))
    if kind not in ("dynamic", "yarn"):
        return length
    trained = section.integer("original_max_position_embeddings", length) if kind == "yarn" else length
    return max(length, int(trained * section.number("factor", 1.0)))


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


def _dynamic(s: _Scaling) -> Rope:
    """NTK-aware: theta grows with the positions served beyond those of the training."""
    return replace(s.rope, ntk_factor=s.section.number("factor"), original_len=s.max_len)


def _yarn(s: _Scaling) -> Rope:
    """arXiv:2309.00071: frequencies that turn often stay, slow ones are divided by `factor`, between them a ramp."""
    length = s.original_len
    factor = s.section.number("factor", s.max_len / length)
    attention = _mscale(factor)
    over, under = s.section.maybe_number("mscale"), s.section.maybe_number("mscale_all_dim")
    if over is not None and under is not None:
        attention = _mscale(factor, over) / _mscale(factor, under)
    factors = yarn_factors(
        s.rope,
        factor,
        length,
        fast=s.section.number("beta_fast", 32.0),
        slow=s.section.number("beta_slow", 1.0),
        truncate=s.section.flag("truncate", True),
    )
    return replace(s.rope, factors=factors, attention_factor=s.attention_factor(attention))


def _mscale(factor: float, weight: float = 1.0) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_factors(
    rope: Rope, factor: float, original_len: int, *, fast: float = 32.0, slow: float = 1.0, truncate: bool = True
) -> tuple[float, ...]:
    """Divisors of yarn. fast, slow: turns over original_len from which on, and up to which, the ramp goes."""

    def place(turns: float) -> float:
        return rope.dim * math.log(original_len / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = place(fast), place(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0.0
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(rope.dim // 2)]
    return tuple(1.0 / (share / factor + 1.0 - share) for share in ramp)


def _longrope(s: _Scaling) -> Rope:
    """arXiv:2402.13753: one list of divisors up to the length of the training, another where more is served."""
    length = s.original_len
    factor = s.section.number("factor", s.max_len / length)
    attention = math.sqrt(1 + math.log(factor) / math.log(length)) if factor > 1 else 1.0
    lists = {}
    for key in ("short_factor", "long_factor"):
        divisors = s.section.items(key, s.rope.dim // 2)
        if divisors is None or any(isinstance(d, bool) or not isinstance(d, int | float) or d <= 0 for d in divisors):
            raise s.section.bad(key, divisors, f"a list of {s.rope.dim // 2} positive numbers")
        lists[key] = tuple(float(d) for d in divisors)
    return replace(
        s.rope,
        factors=lists["short_factor"],
        long_factors=lists["long_factor"],
        original_len=length,
        attention_factor=s.attention_factor(attention),
    )


SCALINGS: dict[str, Callable[[_Scaling], Rope]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
