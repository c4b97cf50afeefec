"""The engine core: the step, and what it needs to be told. One thread, no sockets, no waiting.

`EngineProcess` drives it behind ZeroMQ, `LLM` drives it in process.
"""

from __future__ import annotations

import time
from typing import Any

from quire.config import EngineConfig
from quire.engine.grammar.gate import Gate
from quire.engine.results import StepResult
from quire.engine.runner import ModelRunner
from quire.engine.scheduler import Scheduler, StepPlan
from quire.engine.seeds import SeedStream
from quire.request import AddRequest, FinishReason, StepOutputs, StepStats, TokenDelta

GATE_WAIT_S = 0.02
"""A step with nothing to compute waits this long for a grammar; requests that arrive meanwhile wait with it."""


class EngineCore:
    """A scheduler and a model runner, stepped by the caller. gate: holds back what is not ready for the scheduler."""

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, config: EngineConfig, gate: Gate | None = None
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.gate = gate
        self._seeds = SeedStream(config.seed)
        self._refused: list[TokenDelta] = []

    @property
    def has_work(self) -> bool:
        """True where `step` has something to do or to say."""
        return self.scheduler.has_work or bool(self._refused) or bool(self.gate)

    def add(self, request: AddRequest) -> None:
        """Take a request; where it can never be served, the next step says so."""
        seed = self._seeds.draw() if request.params.seed is None else request.params.seed
        if request.params.structured_outputs is None and not (self.gate and request.request_id in self.gate):
            self._enqueue(request, seed)
        elif (fault := self._fault(request)) is not None:
            self._refused.append(
                TokenDelta(request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=fault)
            )
        else:
            assert self.gate is not None
            self.gate.hold(request, seed)

    def _fault(self, request: AddRequest) -> str | None:
        if self.gate is None:
            return "structured outputs are not available here"
        if request.request_id in self.gate:
            return f"request id {request.request_id!r} is already in use"
        return self.scheduler.fault(request)

    def _enqueue(self, request: AddRequest, seed: int, scratch: dict[str, Any] | None = None) -> None:
        refusal = self.scheduler.add(request, seed=seed, scratch=scratch)
        if refusal is not None:
            self._refused.append(refusal)

    def _release(self) -> None:
        """Let go on what the gate has ready; wait for it a moment where there is nothing else to do."""
        if self.gate:
            idle = not (self.scheduler.has_work or self._refused)
            admitted, refused = self.gate.release(GATE_WAIT_S if idle else 0.0)
            self._refused += refused
            for one in admitted:
                self._enqueue(one.request, one.seed, one.scratch)

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests and free their blocks; no delta follows for them."""
        for request_id in request_ids:
            if not (self.gate and self.gate.discard(request_id)):
                self.scheduler.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts; what runs goes on."""
        self.scheduler.kv.pool.forget_all()

    def step(self) -> StepOutputs:
        """Schedule, run, sample, record. An exception in here leaves the core unusable."""
        self._release()
        began = time.monotonic()
        plan = self.scheduler.schedule(began)
        result = self.runner.run(plan) if plan.scheduled else StepResult()
        deltas = self._refused + self.scheduler.update(plan, result.tokens, result.extras)
        self._refused = []
        return StepOutputs(deltas=deltas, stats=self.stats(plan, len(result.tokens), time.monotonic() - began))

    def stats(self, plan: StepPlan | None = None, num_generated: int = 0, step_s: float = 0.0) -> StepStats:
        """The state now; of a step where a plan is given."""
        scheduler, plan = self.scheduler, plan or StepPlan()
        return StepStats(
            num_waiting=len(scheduler.waiting) + (len(self.gate) if self.gate else 0),
            num_running=len(scheduler.running),
            num_swapped=0,
            num_blocks=scheduler.kv.pool.num_blocks,
            num_blocks_used=scheduler.kv.pool.num_used,
            step_s=step_s if plan.scheduled else 0.0,
            batch_size=len(plan.scheduled),
            num_prompt_tokens=plan.num_prompt_tokens,
            num_generated_tokens=num_generated,
            prefix_cache_queries=scheduler.counters.prefix_queries,
            prefix_cache_hits=scheduler.counters.prefix_hits,
            preemptions_recompute=scheduler.counters.preemptions,
            preemptions_swap=0,
            heartbeat_s=time.monotonic(),
        )
