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
from quire.errors import EngineDeadError, OverloadedError, QuireError, RequestError
from quire.metrics import EngineMetrics
from quire.models.generation_config import SamplingDefaults
from quire.outputs.choice import Choice, choices_of, requests_of
from quire.request import AddRequest, EngineReady, FinishReason, PoolRequest, SamplingParams, StepOutputs, StepStats
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
        self._choices: dict[str, tuple[AnyWork, Any]] = {}
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
        for job in self._jobs():
            job.fail(error)

    def drain(self) -> None:
        """Take nothing new; what runs goes on."""
        if self.state is not State.DEAD:
            self.state = State.DRAINING

    async def drained(self) -> None:
        """Wait until nothing is in flight (the caller has the deadline)."""
        await self._idle.wait()

    def cut(self, error: QuireError) -> None:
        """Fail everything that is still in flight."""
        for job in self._jobs():
            job.fail(error)

    @property
    def num_in_flight(self) -> int:
        return len(self._choices)

    @property
    def num_waiting(self) -> int:
        """Sequences that have not been scheduled yet, as far as is known here."""
        return sum(not choice.scheduled for _, choice in self._choices.values())

    @property
    def alive(self) -> bool:
        """False when the engine is gone, or has had work and gave no sign of life for `liveness_timeout`."""
        if self.state is State.DEAD:
            return False
        silence_s = self._clock() - self._last_sign_s
        return not self._choices or silence_s < self.config.liveness_timeout

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
                f"the model {name!r} does not exist here; served: {', '.join(self.names)}",
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
        async with self.in_flight(job, requests, engine):
            yield job

    @asynccontextmanager
    async def in_flight(
        self, job: AnyWork, requests: Sequence[AddRequest | PoolRequest], engine: Engine
    ) -> AsyncIterator[None]:
        """Hand a job's requests over to the engine that `admit` gave, and bring it what is reported; at the end it is forgotten."""
        if not self._choices:
            self._last_sign_s = self._clock()  # silence counts only while there is work
        for choice in job.choices:
            self._choices[choice.request_id] = (job, choice)
        self._idle.clear()
        try:
            await self._hand_over(engine, requests)
            yield
        except OverloadedError as exc:
            self.metrics.dropped(exc.reason)
            raise
        finally:
            self._release(job, engine)

    async def _hand_over(self, engine: Engine, requests: Iterable[AddRequest | PoolRequest]) -> None:
        """An engine that takes nothing more does not make its clients wait longer than a full queue would."""
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

    def _release(self, job: AnyWork, engine: Engine) -> None:
        """Forget a job; what had not ended is aborted in the engine, also while this task is being cancelled."""
        left = job.unfinished
        for choice in job.choices:
            self._choices.pop(choice.request_id, None)
        if not self._choices:
            self._idle.set()
        self._log_texts(job)
        if not left:
            return
        reason = FinishReason.ERROR if self.state is State.DEAD else FinishReason.ABORT
        for choice in left:
            job.finish(choice, reason)
        self.abort(engine, [choice.request_id for choice in left])

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

    def admit(self, count: int, what: str = "prompts times n", param: str = "n") -> Engine:
        """The engine, where so many sequences may wait now. what, param: who brings them. Raises OverloadedError, or RequestError where so
        many never may."""
        if self.state is not State.READY or self._engine is None:
            error = self._not_ready()
            if isinstance(error, OverloadedError):
                self.metrics.dropped(error.reason)
            raise error
        most = self.config.max_queue_size + self.config.max_num_seqs
        if count > most:
            raise RequestError(
                f"{what} are {count} sequences, but at most {most} can run and wait here "
                "(--max-num-seqs and --max-queue-size)",
                param=param,
                code="invalid_value",
            )
        scheduled = self.num_in_flight - self.num_waiting
        engine_has_queue = self.stats is not None and self.stats.num_waiting > 0
        free = 0 if engine_has_queue else max(0, self.config.max_num_seqs - scheduled)
        if self.num_waiting + count > self.config.max_queue_size + free:
            self.metrics.dropped("queue_full")
            raise OverloadedError(
                f"the queue is full: {self.num_waiting} requests wait, --max-queue-size is {self.config.max_queue_size}",
                reason="queue_full",
                retry_after_s=RETRY_FULL_S,
            )
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

    def _jobs(self) -> list[AnyWork]:
        return list({id(job): job for job, _ in self._choices.values()}.values())
