"""The scheduler of models that pool: the same steps, budget, queue and preemption; what ends a sequence is its vector.

Pure, as the scheduler of generation is.
"""

from __future__ import annotations

from typing import Any

from quire.engine.plan import StepPlan
from quire.engine.pooling.sequence import PooledSequence
from quire.engine.report import last_words, progress
from quire.engine.results import Extras, Fault
from quire.engine.scheduler import Scheduler
from quire.engine.sequence import State
from quire.kvcache.hashing import prefix_context
from quire.models.pooling import Pooling
from quire.request import FinishReason, PoolRequest, TokenDelta


class PoolingScheduler(Scheduler):
    """See the module. All of its sequences came by `pool`."""

    def __init__(self, *arguments: Any, pooling: Pooling, **options: Any) -> None:
        """As of `Scheduler`. pooling: what the model does with hidden states."""
        super().__init__(*arguments, **options)
        self.pooling = pooling

    def pool(self, request: PoolRequest) -> TokenDelta | None:
        """Take a prompt. A delta with an error comes back instead where it can never be computed."""
        fault = self._limits.prompt_fault(request.prompt_token_ids)
        if request.request_id in self._live:
            fault = f"request id {request.request_id!r} is already in use"
        if fault is not None:
            return TokenDelta(
                request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=fault
            )
        self._order += 1
        sequence = PooledSequence(
            request,
            pooling=self.pooling,
            table=self.kv.table(prefix_context(request.cache_salt)),
            order=self._order,
        )
        self._live[request.request_id] = sequence
        self._queue(sequence, held=False)
        return None

    def update(self, plan: StepPlan, tokens: list[int], extras: Extras | None = None) -> list[TokenDelta]:
        deltas = super().update(plan, tokens, extras)
        for number, result in (extras or Extras()).pooled.items():
            sequence = plan.scheduled[number].sequence
            if sequence.state is State.FINISHED:
                continue
            if result is None:
                if not sequence.told:
                    deltas.append(progress(sequence, None))
                continue
            deltas.append(last_words(sequence, result) if isinstance(result, Fault) else progress(sequence, result))
            self._finish(sequence)
        return deltas
