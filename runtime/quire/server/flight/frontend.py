"""The requests in flight: admission, hand-over to the engine, and the way back.

One per process. Its state is one of: loading (with a stage), ready, draining, dead. It knows no HTTP; the routes know no
engine. Whatever ends a job early (client gone, timeout, failure) leaves through `job()`, which frees it in the engine.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from quire.config import ServeConfig
from quire.errors import EngineDeadError, OverloadedError, QuireError, RequestError, shown
from quire.metrics import EngineMetrics
from quire.models.generation_config import SamplingDefaults
from quire.outputs.choice import Choice, choices_of, requests_of
from quire.request import AddRequest, EngineReady, FinishReason, PoolRequest, SamplingParams, StepOutputs, StepStats
from quire.server.flight.admission import check_sequences, queue_full
from quire.server.flight.engine import Engine
from quire.server.flight.filtering import FilteredAnswer, load_filters
from quire.server.flight.jobs import Job
from quire.server.flight.work import AnyWork
from quire.server.tasks import refusal
from quire.text import Tokenizer

_log = logging.getLogger(__name__)
_requests_log = logging.getLogger("quire.requests")
"""Speaks only with --log-requests."""

RETRY_LOADING_S, RETRY_FULL_S, RETRY_DRAINING_S = 5, 1, 10


class State(enum.StrEnum):
    """What the server is doing; only READY takes requests."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class Frontend:
    """See the module. `stage` says more about LOADING; `error` is why it is DEAD. Raises ConfigError for a filter that cannot be loaded."""

    def __init__(self, config: ServeConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._clock = clock  # of liveness
        self.state = State.LOADING
        self.stage = "starting"
        self.error: QuireError | None = None
        self.names: tuple[str, ...] = config.served_model_name or (config.model,)
        self.metrics = self._metrics()
        self.filters = load_filters(config.filter)
        self.started_s = time.monotonic()
        self.created = int(time.time())
        self.stats: StepStats | None = None
        self.defaults = SamplingDefaults()
        self._tokenizer: Tokenizer | None = None
        self._engine: Engine | None = None
        self._jobs: dict[AnyWork, None] = {}  # in the order in which they came
        self._choices: dict[str, tuple[AnyWork, Any]] = {}  # those that the engine has, by request id
        self._last_sign_s = clock()
        self._idle = asyncio.Event()
        self._idle.set()
        self._aborting: set[asyncio.Task[None]] = set()

    # --- life ---------------------------------------------------------------------------------------------------

    def named(self, name: str) -> None:
        """The model's own name is known; flags win."""
        if not self.config.served_model_name:
            self.names = (name,)
            self.metrics = self._metrics()

    def attach(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        labels: Mapping[str, str],
        defaults: SamplingDefaults | None = None,
    ) -> None:
        """The engine is up and the tokenizer is read: take requests. labels: more labels of `engine_info`. defaults: of sampling
        parameters that requests do not set."""
        self._engine, self._tokenizer = engine, tokenizer
        self.defaults = defaults or SamplingDefaults()
        self.metrics.ready(engine.ready, labels)
        self.metrics.startup("total", time.monotonic() - self.started_s)
        self._last_sign_s = self._clock()
        if self.state is State.LOADING:
            self.state = State.READY

    async def pump(self) -> None:
        """Distribute what the engine reports until it ends; then every job fails with the cause, which is raised as EngineDeadError."""
        assert self._engine is not None, "attach() comes first"
        try:
            async for report in self._engine.outputs():
                self._distribute(report)
            raise EngineDeadError("the engine process ended without a word")
        except EngineDeadError as exc:
            self.die(exc)
            raise
        except Exception as exc:
            _log.exception("the engine's reports cannot be read")
            error = EngineDeadError(f"its reports cannot be read: {type(exc).__name__}")
            self.die(error)
            raise error from exc

    def die(self, error: QuireError) -> None:
        """Nothing more will come from the engine."""
        self.state, self.error = State.DEAD, error
        self.cut(error)

    def drain(self) -> None:
        """Take nothing new; what runs goes on."""
        if self.state is not State.DEAD:
            self.state = State.DRAINING

    async def drained(self) -> None:
        """Wait until nothing is in flight (the caller has the deadline)."""
        await self._idle.wait()

    def cut(self, error: QuireError) -> None:
        """Fail everything that is still in flight."""
        for job in self._jobs:
            job.fail(error)

    @property
    def num_in_flight(self) -> int:
        """Sequences that the engine has."""
        return len(self._choices)

    @property
    def num_waiting(self) -> int:
        """Requests with which the engine has not begun, as far as is known here."""
        return sum(not job.begun for job in self._jobs)

    @property
    def alive(self) -> bool:
        """False when the engine is gone, or has had work and gave no sign of life for `liveness_timeout`."""
        if self.state is State.DEAD:
            return False
        silence_s = self._clock() - self._last_sign_s
        return not self._jobs or silence_s < self.config.liveness_timeout

    def drop(self, reason: str) -> None:
        """Count a request that was refused before it came here."""
        self.metrics.dropped(reason)

    # --- what routes need ---------------------------------------------------------------------------------------

    @property
    def tokenizer(self) -> Tokenizer:
        """Raises OverloadedError while it is not there."""
        if self._tokenizer is None:
            raise self._not_ready()
        return self._tokenizer

    @property
    def ready(self) -> EngineReady:
        """What the engine reported; raises OverloadedError while it is not there."""
        if self._engine is None:
            raise self._not_ready()
        return self._engine.ready

    def check_model(self, name: str | None, task: str | None = None) -> str:
        """The name to answer with; raises RequestError: 404 for a model that is not served here, 400 for one that cannot do the task."""
        if name is not None and name not in self.names:
            raise RequestError(
                f"the model {shown(name)} does not exist here; served: {', '.join(self.names)}",
                param="model",
                code="model_not_found",
                status=404,
            )
        name = self.names[0] if name is None else name
        if task is not None and self._engine is not None and (refused := refusal(name, self._engine.ready, task)):
            raise refused
        return name

    @asynccontextmanager
    async def job(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[SamplingParams],
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        visible: frozenset[int] = frozenset(),
    ) -> AsyncIterator[Job]:
        """Run prompts, each `n` times, with parameters for each, checked by the caller. visible: special tokens that are text all the
        same. Raises OverloadedError."""
        engine, tokenizer = self.admit(sum(one.num_sequences for one in params)), self.tokenizer
        key = uuid.uuid4().hex
        choices: list[Choice] = []
        for index, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            choices += choices_of(key, prompt, one, tokenizer, prompt_index=index, first=len(choices), visible=visible)
        job = Job(
            choices,
            self.metrics,
            partial(self.abort, engine),
            queue_timeout_s=self.config.queue_timeout,
            keep_texts=self.config.log_requests,
            filtered=self._filtered(choices),
        )
        requests = requests_of(choices, arrival_s=job.arrival_s, priority=priority, cache_salt=cache_salt)
        async with self.in_flight(job, engine):
            await self.hand_over(engine, job, choices, requests)
            yield job

    @asynccontextmanager
    async def in_flight(self, job: AnyWork, engine: Engine) -> AsyncIterator[None]:
        """As long as this lasts a job may hand sequences over to the engine that `admit` gave, and is brought what is reported; at the end
        it is forgotten."""
        if not self._jobs:
            self._last_sign_s = self._clock()  # silence counts only while there is work
        self._jobs[job] = None
        self._idle.clear()
        try:
            yield
        except OverloadedError as exc:
            self.metrics.dropped(exc.reason)
            raise
        finally:
            self._release(job, engine)

    async def hand_over(
        self, engine: Engine, job: AnyWork, choices: Sequence[Any], requests: Iterable[AddRequest | PoolRequest]
    ) -> None:
        """Give sequences of a job in flight to the engine, by these requests. An engine that takes nothing more does not make its clients
        wait longer than a full queue would: OverloadedError."""
        self._choices.update((choice.request_id, (job, choice)) for choice in choices)
        try:
            async with asyncio.timeout(self.config.queue_timeout):
                for request in requests:
                    await engine.add(request)
        except TimeoutError:
            raise OverloadedError(
                f"the engine took no request for {self.config.queue_timeout:g} s (--queue-timeout)",
                reason="queue_timeout",
                retry_after_s=RETRY_LOADING_S,
            ) from None

    def settled(self, request_id: str) -> None:
        """A sequence has ended before its job: nothing more is known of it here."""
        self._choices.pop(request_id, None)

    def _release(self, job: AnyWork, engine: Engine) -> None:
        """Forget a job; what had not ended is aborted in the engine, also while this task is being cancelled."""
        left = job.unfinished
        there = [choice.request_id for choice in left if choice.request_id in self._choices]
        for choice in job.choices:
            self._choices.pop(choice.request_id, None)
        self._jobs.pop(job, None)
        if not self._jobs:
            self._idle.set()
        self._log_texts(job)
        if not left:
            return
        reason = FinishReason.ERROR if self.state is State.DEAD else FinishReason.ABORT
        for choice in left:
            job.finish(choice, reason)
        if there:
            self.abort(engine, there)

    def abort(self, engine: Engine, request_ids: list[str]) -> None:
        """Tell the engine to forget sequences. Nobody waits for it: an engine that does not listen holds no answer back."""
        if self.state is State.DEAD:
            return
        task = asyncio.ensure_future(engine.abort(request_ids))
        self._aborting.add(task)
        task.add_done_callback(self._aborted)

    def _aborted(self, task: asyncio.Task[None]) -> None:
        self._aborting.discard(task)
        if not task.cancelled() and (exc := task.exception()) is not None and self.state is not State.DEAD:
            _log.error("the engine could not be told to forget requests", exc_info=exc)

    def _filtered(self, choices: Sequence[Choice]) -> list[FilteredAnswer] | None:
        """What their texts pass through; raises RequestError where they would be told another way."""
        if not self.filters.read_answers:
            return None
        for param, told in (
            ("logprobs", any(choice.tells_logprobs for choice in choices)),
            ("prompt_logprobs", any(choice.params.prompt_logprobs is not None for choice in choices)),
        ):
            if told:
                raise RequestError(
                    f"{param} are not possible where answers are filtered (--filter): they tell all tokens",
                    param=param,
                    code="invalid_value",
                )
        tokenizer = self.tokenizer
        return [
            answer
            for choice in choices
            if (answer := self.filters.answer(lambda ids=choice.prompt_token_ids: tokenizer.decode(ids)))  # type: ignore[misc]
        ]

    def _log_texts(self, job: AnyWork) -> None:
        """What was asked and said, where it is wanted in the log."""
        if job.texts is None or self._tokenizer is None:
            return
        prompts = {choice.prompt_index: choice.prompt_token_ids for choice in job.choices}
        texts = [self._tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts.values()]
        fields = {"prompts": texts, "answers": job.texts}
        _requests_log.info("prompts %r answers %r", texts, job.texts, extra={"fields": fields})

    def admit(self, num_sequences: int) -> Engine:
        """The engine, where a request of so many sequences may come now. Raises OverloadedError, or RequestError where so many never may."""
        if self.state is not State.READY or self._engine is None:
            error = self._not_ready()
            if isinstance(error, OverloadedError):
                self.metrics.dropped(error.reason)
            raise error
        check_sequences(num_sequences)
        engine_has_queue = self.stats is not None and self.stats.num_waiting > 0
        full = queue_full(self._jobs, len(self._choices), num_sequences, self.config, engine_has_queue=engine_has_queue)
        if full is not None:
            self.metrics.dropped("queue_full")
            raise OverloadedError(full, reason="queue_full", retry_after_s=RETRY_FULL_S)
        return self._engine

    # --- inside -------------------------------------------------------------------------------------------------

    def _metrics(self) -> EngineMetrics:
        config = self.config
        return EngineMetrics(self.names[0], namespace=config.metric_namespace, compat=config.metrics_compat)

    def _not_ready(self) -> QuireError:
        if self.state is State.DEAD:
            return EngineDeadError(str(self.error or "it is gone"))  # a ModelError is the start's, not the request's
        if self.state is State.DRAINING:
            return OverloadedError("the server is shutting down", reason="draining", retry_after_s=RETRY_DRAINING_S)
        return OverloadedError(f"the model is loading ({self.stage})", reason="loading", retry_after_s=RETRY_LOADING_S)

    def _distribute(self, report: StepOutputs) -> None:
        self._last_sign_s = self._clock()
        self.stats = report.stats
        for delta in report.deltas:
            found = self._choices.get(delta.request_id)
            if found is not None:
                found[0].deliver(found[1], delta)
        self.metrics.step(report.stats)
