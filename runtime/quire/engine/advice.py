"""What would help where the memory is short. Pure: each flag is tried in a plan before it is advised.

Flags come first, for they cost nothing: a smaller step, the same model in fewer bits. Then more memory, then another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.config import EngineConfig
from quire.config.describe import flag_of
from quire.engine.budget import Budget
from quire.engine.memory import MemoryPlan, Short, missing_for_all, plan
from quire.engine.need import Need
from quire.engine.sampling.logprobs import ROWS
from quire.errors import ConfigError, ModelError
from quire.models.executor import Footprint
from quire.models.loader import Builder

LEAST_STEP = 64
"""No smaller token budget is advised."""


@dataclass(frozen=True)
class Alternative:
    """A flag with another value, and what a start with it asks for."""

    flag: str
    need: Need


def plan_or_advise(
    need: Need, alternatives: Iterable[Alternative], budget: Budget, swap_budget: Budget | None = None
) -> MemoryPlan:
    """`memory.plan`; alternatives: tried in their order where it does not fit. Raises ModelError with the sum and what would help."""
    try:
        return plan(need, budget, swap_budget)
    except Short as short:

        def first(others: Iterable[Alternative]) -> list[str]:
            return next(([one.flag] for one in others if _fits(one, need.useful_len, budget, swap_budget)), [])

        helping = [flag for change in short.fits for flag in first([_changed(need, *change)])]
        for others in (_smaller_steps(need), alternatives):
            helping += first(others)
        raise ModelError(f"{short}; {_words(helping, _more(short, need, budget))}") from None


def same_model(builder: Builder, need: Need) -> Iterator[Alternative]:
    """In fewer bits: each flag with which the builder makes it so, those first that change least."""
    config = need.config
    for field, value in (
        ("dtype", "auto"),
        ("quantization", "auto"),
        ("dtype", "bfloat16"),
        ("quantization", "int8"),
        ("quantization", "int4"),
    ):
        other = config.model_copy(update={field: value})
        try:
            precision = builder.precision(other.dtype, other.quantization)
        except ConfigError:  # not this file, or not what computes it
            continue
        footprint = builder.footprint(precision)
        if _lighter(footprint, need.footprint):
            kv_dtype = precision.kv_cache(config.kv_cache_dtype)
            yield Alternative(
                f"{flag_of(field)} {value}", replace(need, footprint=footprint, kv_dtype_bytes=kv_dtype.itemsize)
            )


def for_full_length(need: Need, budget: Budget, swap_budget: Budget | None = None) -> str:
    """What gives a sequence the model's length where the default pool does not, and takes no structured outputs for it; empty where nothing does."""
    asked = _changed(need, "max_model_len", need.wanted_len)
    larger, structured = [asked], plan(need, budget, swap_budget).grammars > 0
    try:
        plan(asked.need, budget, swap_budget)
    except Short as short:
        larger = [_changed(need, *change) for change in short.fits if change[0] != "max_model_len"]
    except (ModelError, ConfigError):
        larger = []
    for one in larger:
        if _fits(one, need.wanted_len, budget, swap_budget, structured=structured):
            return one.flag
    missing = missing_for_all(need, budget, swap_budget)
    return budget.more(missing) if missing else ""


def _lighter(one: Footprint, other: Footprint) -> bool:
    return one.weights + one.loading < other.weights + other.loading


def _smaller_steps(need: Need) -> Iterator[Alternative]:
    """The largest first."""
    for field, least in (("max_num_batched_tokens", LEAST_STEP), ("max_num_seqs", ROWS)):
        value = getattr(need.config, field)
        while (value := value // 2) >= least:
            yield _changed(need, field, value)


def _changed(need: Need, field: str, value: int | str) -> Alternative:
    config: EngineConfig = need.config.model_copy(update={field: value})
    return Alternative(f"{flag_of(field)} {value}", replace(need, config=config))


def _fits(
    one: Alternative, least_len: int, budget: Budget, swap_budget: Budget | None, *, structured: bool = False
) -> bool:
    """With a pool that holds so many tokens. structured: and memory for structured outputs."""
    try:
        found = plan(one.need, budget, swap_budget)
    except (ModelError, ConfigError):
        return False
    return found.max_model_len >= least_len and (found.grammars > 0 or not structured)


def _more(short: Short, need: Need, budget: Budget) -> str:
    """More memory, where that alone helps."""
    if not short.missing:
        return ""
    return budget.more(short.missing, short.full, f"all of its {need.wanted_len:,} tokens")


def _words(helping: list[str], more: str) -> str:
    if not helping:
        return f"{more}, or take a smaller model" if more else "take a smaller model"
    flags = f"{helping[0]} fits" + "".join(f", and so does {flag}" for flag in helping[1:])
    return f"{flags}, or {more}" if more else flags
