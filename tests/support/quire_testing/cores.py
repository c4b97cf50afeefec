"""Engine cores in process, and how to get answers out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.startup import build
from quire.request import AddRequest, FinishReason, SamplingParams


def make_core(model: Path | str, **config: Any) -> EngineCore:
    """An engine in float32 on one thread."""
    settings = {"dtype": "float32", "device": "cpu", "cpu_threads": 1, "num_blocks": 256, **config}
    return build(EngineConfig(model=str(model), **settings))[0]


def generate(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams | list[SamplingParams], *, every: int = 0
) -> list[list[int]]:
    """Answers to prompts. every: steps between arrivals, 0 for all at once."""
    chosen = params if isinstance(params, list) else [params] * len(prompts)
    waiting = [
        AddRequest(request_id=str(index), prompt_token_ids=prompt, params=one, arrival_s=0.0)
        for index, (prompt, one) in enumerate(zip(prompts, chosen, strict=True))
    ]
    answers: list[list[int]] = [[] for _ in prompts]
    ended: list[int] = []
    steps = 0
    while waiting or core.has_work:
        while waiting and (every == 0 or steps % every == 0 or not core.has_work):
            core.add(waiting.pop(0))
            if every:
                break
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            answers[int(delta.request_id)] += delta.token_ids
            if delta.finish_reason is not None:
                assert delta.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
                ended.append(int(delta.request_id))
        steps += 1
    assert sorted(ended) == list(range(len(prompts)))
    assert core.scheduler.kv.pool.num_used == 0
    return answers
