"""What would help where the memory is short. Pure: each piece of advice is tried in a plan before it is given.

Flags come first, for they cost nothing: a smaller step, the same model in fewer bits. Then more memory, then another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from quire.config import EngineConfig
from quire.config.describe import flag_of
from quire.engine.budget import Budget
from quire.engine.memory import MemoryPlan, Short, plan
from quire.engine.need import USEFUL_LEN, Need
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
        helping = list(short.fits)
        for others in (_smaller_steps(need), alternatives):
            helping += next(([one.flag] for one in others if _fits(one.need, budget, swap_budget)), [])
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
    """What gives a sequence the model's length where the default pool does not; empty where nothing does."""
    asked = replace(need, config=need.config.model_copy(update={"max_model_len": need.wanted_len}))
    try:
        plan(asked, budget, swap_budget)
    except Short as short:
        return next(iter(short.fits[1:]), "") or _more(short, asked, budget)
    except (ModelError, ConfigError):
        return ""
    return f"--max-model-len {need.wanted_len}"


def _lighter(one: Footprint, other: Footprint) -> bool:
    return one.weights + one.loading < other.weights + other.loading


def _smaller_steps(need: Need) -> Iterator[Alternative]:
    """The largest first."""
    for field, least in (("max_num_batched_tokens", LEAST_STEP), ("max_num_seqs", ROWS)):
        value = getattr(need.config, field)
        while (value := value // 2) >= least:
            smaller: EngineConfig = need.config.model_copy(update={field: value})
            yield Alternative(f"{flag_of(field)} {value}", replace(need, config=smaller))


def _fits(need: Need, budget: Budget, swap_budget: Budget | None) -> bool:
    """With a pool that is of use."""
    try:
        found = plan(need, budget, swap_budget)
    except (ModelError, ConfigError):
        return False
    return found.max_model_len >= min(USEFUL_LEN, need.wanted_len)


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
