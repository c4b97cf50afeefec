"""The engine core: the step, and what it needs to be told. One thread, no sockets, no waiting.

`EngineProcess` drives it behind ZeroMQ, `LLM` drives it in process.
"""

from __future__ import annotations

import time

from quire.config import EngineConfig
from quire.engine.results import StepResult
from quire.engine.runner import ModelRunner
from quire.engine.scheduler import Scheduler, StepPlan
from quire.engine.seeds import SeedStream
from quire.request import AddRequest, StepOutputs, StepStats, TokenDelta


class EngineCore:
    """A scheduler and a model runner, stepped by the caller."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner, config: EngineConfig) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self._seeds = SeedStream(config.seed)
        self._refused: list[TokenDelta] = []

    @property
    def has_work(self) -> bool:
        """True where `step` has something to do or to say."""
        return self.scheduler.has_work or bool(self._refused)

    def add(self, request: AddRequest) -> None:
        """Take a request; where it can never be served, the next step says so."""
        seed = request.params.seed
        refusal = self.scheduler.add(request, seed=self._seeds.draw() if seed is None else seed)
        if refusal is not None:
            self._refused.append(refusal)

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests and free their blocks; no delta follows for them."""
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts; what runs goes on."""
        self.scheduler.kv.pool.forget_all()

    def step(self) -> StepOutputs:
        """Schedule, run, sample, record. An exception in here leaves the core unusable."""
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
            num_waiting=len(scheduler.waiting),
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
