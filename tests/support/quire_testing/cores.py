"""Engine cores in process, and how to get answers out of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.startup import build
from quire.request import AddRequest, FinishReason, SamplingParams, TokenLogprobs


def make_core(model: Path | str, **config: Any) -> EngineCore:
    """An engine in float32 on one thread."""
    settings = {"dtype": "float32", "device": "cpu", "cpu_threads": 1, "num_blocks": 256, **config}
    return build(EngineConfig(model=str(model), **settings))[0]


@dataclass
class Told:
    """What came back for one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] | None = None
    num_cached: int = 0
    reason: FinishReason | None = None


def ask(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], *, every: int = 0
) -> list[Told]:
    """All that is told for prompts. every: steps between arrivals, 0 for all at once. Nothing fails, nothing is left behind."""
    chosen = params if isinstance(params, list) else [params] * len(prompts)
    waiting = [
        AddRequest(request_id=str(index), prompt_token_ids=prompt, params=one, arrival_s=0.0)
        for index, (prompt, one) in enumerate(zip(prompts, chosen, strict=True))
    ]
    told = [Told() for _ in prompts]
    steps = 0
    while waiting or core.has_work:
        while waiting and (every == 0 or steps % every == 0 or not core.has_work):
            core.add(waiting.pop(0))
            if every:
                break
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            one = told[int(delta.request_id)]
            assert one.reason is None, "nothing comes after the end"
            one.tokens += delta.token_ids
            one.logprobs += delta.logprobs or []
            one.num_cached += delta.num_cached_tokens
            one.reason = delta.finish_reason
            if delta.prompt_logprobs is not None:
                assert one.prompt_logprobs is None, "told twice"
                one.prompt_logprobs = delta.prompt_logprobs
        steps += 1
    assert all(one.reason in (FinishReason.STOP, FinishReason.LENGTH) for one in told)
    assert core.scheduler.kv.pool.num_used == 0
    return told


def generate(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], *, every: int = 0
) -> list[list[int]]:
    """The tokens of `ask`."""
    return [one.tokens for one in ask(core, prompts, params, every=every)]
