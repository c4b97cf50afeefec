"""The engine core of a model that pools: it takes prompts and gives vectors."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Literal

from quire.config import EngineConfig
from quire.engine.core import EngineCore, Runner
from quire.engine.grammar.gate import Gate
from quire.engine.pooling.scheduler import PoolingScheduler
from quire.engine.results import Fault
from quire.engine.sequence import Sequence
from quire.errors import ModelError
from quire.request import AddRequest, PoolingFacts, PoolRequest, SamplingParams

WARM_UP_TOKENS = 8


class _OpenGate(Gate):
    """Nothing is held: there are no grammars."""

    def __init__(self) -> None:
        """Without any."""

    def holds(self, params: SamplingParams) -> bool:
        return False

    def look(
        self, held: Iterable[Sequence], wait_s: float = 0.0
    ) -> tuple[list[Sequence], list[tuple[Sequence, Fault]]]:
        return [], []

    def stats(self, *, drain: bool = False) -> None:
        return None


class PoolingCore(EngineCore):
    """See the module. task: what its vectors are, see `PoolingFacts`."""

    def __init__(
        self,
        scheduler: PoolingScheduler,
        runner: Runner,
        config: EngineConfig,
        task: Literal["embed", "score"] = "embed",
    ) -> None:
        super().__init__(scheduler, runner, config, _OpenGate())
        self._pooling = scheduler
        self._task = task

    def add(self, request: AddRequest) -> None:
        """Refused: this model generates nothing."""
        ids = (request.request_id, *(sibling.request_id for sibling in request.siblings))
        self.refuse(ids, "this model makes vectors of prompts and generates no text; --pooling none is for text")

    def pool(self, request: PoolRequest) -> None:
        self._checked = False
        if (refusal := self._pooling.pool(request)) is not None:
            self._refused.append(refusal)

    def warm_up(self) -> PoolingFacts:
        """One short prompt through the whole step, and what came of it. Raises ModelError where there came none."""
        length = min(WARM_UP_TOKENS, self.scheduler.max_model_len)
        self.pool(PoolRequest(request_id="warmup", prompt_token_ids=[0] * length, arrival_s=time.monotonic()))
        size = 0
        while self.has_work:
            for delta in self.step().deltas:
                if delta.error is not None:
                    raise ModelError(f"the model does not compute: {delta.error}")
                size = len(delta.vector or b"") // 4
        self.scheduler.forget()
        return PoolingFacts(task=self._task, size=size, normalised=self._pooling.pooling.normalise)
