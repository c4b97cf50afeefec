"""The engine core: the step, and what it needs to be told. One thread, no sockets, no waiting.

`EngineProcess` drives it behind ZeroMQ, `LLM` drives it in process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Protocol

import msgspec

from quire.config import EngineConfig
from quire.engine import audit
from quire.engine.device_usage import DeviceUsage, Usage
from quire.engine.grammar.gate import Gate
from quire.engine.plan import StepPlan
from quire.engine.results import StepResult
from quire.engine.scheduler import Scheduler
from quire.engine.seeds import SeedStream
from quire.request import AddRequest, FinishReason, PoolRequest, StepOutputs, StepStats, TokenDelta

GATE_WAIT_S = 0.02
"""A step with nothing to compute waits this long for a grammar; requests that arrive meanwhile wait with it."""

_log = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes plans. `runner.ModelRunner` draws tokens, those of `engine.pooling` make vectors."""

    def run(self, plan: StepPlan, /) -> StepResult:
        """What came of it: a token for each entry that samples, in order, and extras."""
        ...


class EngineCore:
    """A scheduler and a runner, stepped by the caller. gate: holds back what is not ready for the scheduler.

    `usage` is of the device, for the metrics; who builds the engine sets it.
    """

    usage: DeviceUsage | None = None

    def __init__(self, scheduler: Scheduler, runner: Runner, config: EngineConfig, gate: Gate) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.gate = gate
        self._seeds = SeedStream(config.seed)
        self._refused: list[TokenDelta] = []
        self._num_faults = 0
        self._checked = True

    @property
    def has_work(self) -> bool:
        """True where `step` has something to do or to say."""
        return self.scheduler.has_work or bool(self._refused)

    def add(self, request: AddRequest) -> None:
        """Take a request and its siblings; where it can never be served, the next step says so."""
        self._checked = False
        seed, *siblings = (
            self._seeds.draw() if given is None else given
            for given in (request.params.seed, *(sibling.seed for sibling in request.siblings))
        )
        held = self.gate.holds(request.params)
        refusal = self.scheduler.add(request, seed=seed, sibling_seeds=siblings, held=held)
        if refusal is not None:
            ids = (request.request_id, *(sibling.request_id for sibling in request.siblings))
            self._refused += [msgspec.structs.replace(refusal, request_id=request_id) for request_id in ids]

    def pool(self, request: PoolRequest) -> None:
        """Take a prompt that is to become a vector; where it can never be served, the next step says so."""
        self.refuse([request.request_id], "this model generates text; start it with --pooling for vectors of prompts")

    def refuse(self, request_ids: Iterable[str], error: str) -> None:
        """The next step says of requests that came to nothing why."""
        self._refused += [
            TokenDelta(request_id=request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=error)
            for request_id in request_ids
        ]

    def _release(self) -> None:
        """Let go on what the gate has ready; wait for it a moment where there is nothing else to do."""
        scheduler = self.scheduler
        if scheduler.held:
            idle = not (scheduler.running or len(scheduler.waiting) or self._refused)
            ready, failed = self.gate.look(scheduler.held.values(), GATE_WAIT_S if idle else 0.0)
            for sequence in ready:
                scheduler.release(sequence)
            for sequence, fault in failed:
                self._refused += scheduler.fail(sequence, fault)

    def abort(self, request_ids: list[str]) -> None:
        """Forget requests and free their blocks; no delta follows for them."""
        if self._refused:
            gone = frozenset(request_ids)
            self._refused = [delta for delta in self._refused if delta.request_id not in gone]
        for request_id in request_ids:
            self.scheduler.abort(request_id)

    def reset_prefix_cache(self) -> None:
        """Forget all cached prompts; what runs goes on."""
        self.scheduler.kv.pool.forget_all()

    def check(self) -> None:
        """Look for leaks, once after work has ended. What is found is logged, counted and healed; nothing is raised."""
        if self._checked or self.scheduler.has_work:
            return
        self._checked = True
        found = audit.faults(self.scheduler)
        if found:
            self._num_faults += len(found)
            _log.error("the KV cache's books do not balance (%d faults, healed): %s", len(found), "; ".join(found[:10]))
            audit.heal(self.scheduler)

    def step(self) -> StepOutputs:
        """Schedule, run, sample, record. An exception in here leaves the core unusable."""
        self._release()
        began = time.monotonic()
        plan = self.scheduler.schedule(began)
        result = self.runner.run(plan) if plan.scheduled else StepResult()
        deltas = self._refused + self.scheduler.update(plan, result.tokens, result.extras)
        self._refused = []
        step_s = time.monotonic() - began
        self.scheduler.costs.observe(plan.num_tokens, plan.num_prompt_tokens, step_s)
        return StepOutputs(deltas=deltas, stats=self.stats(plan, sum(token >= 0 for token in result.tokens), step_s))

    def stats(self, plan: StepPlan | None = None, num_generated: int = 0, step_s: float = 0.0) -> StepStats:
        """The state now; of a step where a plan is given."""
        grammars = self.gate.stats(drain=plan is not None)
        scheduler, plan = self.scheduler, plan or StepPlan()
        usage = Usage() if self.usage is None else self.usage.read()
        return StepStats(
            num_waiting=scheduler.num_waiting,
            num_running=len(scheduler.running),
            num_swapped=scheduler.num_swapped,
            num_blocks=scheduler.kv.pool.num_blocks,
            num_blocks_used=scheduler.kv.pool.num_used,
            num_swap_blocks=0 if scheduler.swap is None else scheduler.swap.pool.num_blocks,
            num_swap_blocks_used=0 if scheduler.swap is None else scheduler.swap.pool.num_used,
            kv_utilization=scheduler.utilization,
            step_s=step_s if plan.scheduled else 0.0,
            batch_size=len(plan.scheduled),
            num_prompt_tokens=plan.num_prompt_tokens,
            num_generated_tokens=num_generated,
            prefix_cache_queries=scheduler.counters.prefix_queries,
            prefix_cache_hits=scheduler.counters.prefix_hits,
            preemptions_recompute=scheduler.counters.preemptions_recompute,
            preemptions_swap=scheduler.counters.preemptions_swap,
            grammars=grammars,
            kv_faults=self._num_faults,
            device_busy=usage.busy,
            device_memory=usage.memory,
            heartbeat_s=time.monotonic(),
        )
