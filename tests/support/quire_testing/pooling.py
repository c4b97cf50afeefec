"""Vectors out of engine cores in process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quire.engine.core import EngineCore
from quire.request import FinishReason, PoolRequest


@dataclass
class Vector:
    """What came back for one prompt."""

    values: np.ndarray
    num_cached: int
    deltas: int


def vectors(core: EngineCore, prompts: list[list[int]], *, every: int = 0, **fields: Any) -> list[Vector]:
    """One for each prompt. every: steps between arrivals, 0 for all at once. fields: of each request. Nothing fails, nothing stays."""
    waiting = [
        PoolRequest(request_id=str(index), prompt_token_ids=prompt, arrival_s=0.0, **fields)
        for index, prompt in enumerate(prompts)
    ]
    found: dict[str, Vector] = {}
    seen: dict[str, list[Any]] = {request.request_id: [] for request in waiting}
    steps = 0
    while waiting or core.has_work:
        while waiting and (every == 0 or steps % every == 0 or not core.has_work):
            core.pool(waiting.pop(0))
            if every:
                break
        for delta in core.step().deltas:
            assert delta.error is None, delta.error
            assert delta.request_id not in found, "nothing comes after the end"
            seen[delta.request_id].append(delta)
            if delta.finish_reason is not None:
                assert delta.finish_reason is FinishReason.STOP and delta.vector is not None and not delta.token_ids
                told = seen[delta.request_id]
                found[delta.request_id] = Vector(
                    np.frombuffer(delta.vector, "<f4"), told[0].num_cached_tokens, len(told)
                )
                assert told[0].queue_s is not None
        steps += 1
    assert core.scheduler.kv.pool.num_used == 0
    assert core.scheduler.swap is None or core.scheduler.swap.pool.num_used == 0
    return [found[str(index)] for index in range(len(prompts))]
