"""One HTTP request's share of the engine: its sequences, and what comes back for them.

A job is fed by the frontend (`deliver`, `fail`; synchronous, they never wait) and iterated by one route. It turns token
ids into safe text, ends sequences at stop strings, and keeps the numbers that usage, metrics and the access log need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from quire.engine.seeds import nth_seed
from quire.errors import OverloadedError, QuireError, RequestError
from quire.metrics import EngineMetrics
from quire.request import FinishReason, SamplingParams, TokenDelta
from quire.text import TextStream


@dataclass
class Choice:
    """One sequence. `index` is its place among the choices of the answer, `prompt_index` that of its prompt."""

    request_id: str
    index: int
    prompt_index: int
    prompt_token_ids: list[int]
    params: SamplingParams
    text: TextStream
    num_cached_tokens: int = 0
    scheduled: bool = False
    last_token_s: float | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Piece:
    """New text of one choice (perhaps none); the last piece of a choice has its finish reason."""

    index: int
    text: str
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class Usage:
    """Tokens of a job. A prompt counts once however many choices it has; every generated token counts, also those of a
    cut character and the one that ended the answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Job:
    """See the module. Iterating ends when every choice has ended; it raises what the job failed with.

    abort: tells the engine to forget sequences. queue_timeout_s: how long the job may wait for its first scheduling.
    """

    def __init__(
        self,
        choices: list[Choice],
        metrics: EngineMetrics,
        abort: Callable[[list[str]], Awaitable[None]],
        *,
        queue_timeout_s: float,
    ) -> None:
        self.choices = choices
        self.arrival_s = time.monotonic()
        self.first_token_s: float | None = None
        self._metrics = metrics
        self._abort = abort
        self._queue_timeout_s = queue_timeout_s
        self._deltas: asyncio.Queue[tuple[Choice, TokenDelta] | QuireError] = asyncio.Queue()

    @property
    def unfinished(self) -> list[Choice]:
        return [choice for choice in self.choices if choice.finish_reason is None]

    @property
    def usage(self) -> Usage:
        first_of_prompt = {choice.prompt_index: choice for choice in reversed(self.choices)}.values()
        return Usage(
            prompt_tokens=sum(len(choice.prompt_token_ids) for choice in first_of_prompt),
            completion_tokens=sum(choice.text.num_tokens for choice in self.choices),
            cached_tokens=sum(choice.num_cached_tokens for choice in first_of_prompt),
        )

    def deliver(self, choice: Choice, delta: TokenDelta) -> None:
        """A report of the engine. Times are taken here, before anything can wait."""
        now, metrics = time.monotonic(), self._metrics
        if not choice.scheduled:
            choice.scheduled = True
            choice.num_cached_tokens = delta.num_cached_tokens
            if delta.queue_s is not None:
                metrics.observe(metrics.queue_time, delta.queue_s)
            metrics.count(metrics.prompt_tokens, len(choice.prompt_token_ids))
        if count := len(delta.token_ids):
            if choice.last_token_s is None:
                metrics.observe(metrics.ttft, now - self.arrival_s)
            else:
                metrics.observe(metrics.itl, (now - choice.last_token_s) / count)
            choice.last_token_s = now
            self.first_token_s = self.first_token_s or now
            metrics.count(metrics.generation_tokens, count)
        self._deltas.put_nowait((choice, delta))

    def fail(self, error: QuireError) -> None:
        """The job cannot go on: iterating raises this."""
        self._deltas.put_nowait(error)

    def __aiter__(self) -> Job:
        return self

    async def __anext__(self) -> Piece:
        while True:
            if not self.unfinished:
                raise StopAsyncIteration
            choice, delta = await self._next()
            if choice.finish_reason is None and (piece := await self._piece(choice, delta)) is not None:
                return piece

    async def _next(self) -> tuple[Choice, TokenDelta]:
        if any(choice.scheduled for choice in self.choices):
            item = await self._deltas.get()
        else:
            try:
                async with asyncio.timeout(self.arrival_s + self._queue_timeout_s - time.monotonic()):
                    item = await self._deltas.get()
            except TimeoutError:
                raise OverloadedError(
                    f"the request waited {self._queue_timeout_s:g} s (--queue-timeout) without being scheduled",
                    reason="queue_timeout",
                    retry_after_s=5,
                ) from None
        if isinstance(item, QuireError):
            raise item
        return item

    async def _piece(self, choice: Choice, delta: TokenDelta) -> Piece | None:
        if delta.finish_reason is FinishReason.ERROR:
            self.finish(choice, FinishReason.ERROR)
            raise RequestError(
                f"the engine could not go on with this request: {delta.error or 'unknown cause'}",
                code="engine_error",
                status=500,
            )
        final = delta.finish_reason is not None
        text = choice.text.push(delta.token_ids, final=final, stop_token_id=delta.stop_token_id)
        reason = delta.finish_reason
        if choice.text.stop_found is not None:
            reason = FinishReason.STOP
            if not final:
                await self._abort([choice.request_id])
        if reason is not None:
            self.finish(choice, reason)
        return Piece(choice.index, text, reason) if text or reason is not None else None

    def finish(self, choice: Choice, reason: FinishReason) -> None:
        """Book the end of a choice."""
        choice.finish_reason = reason
        self._metrics.finished(reason.value)
        self._metrics.observe(self._metrics.prompt_length, len(choice.prompt_token_ids))
        self._metrics.observe(self._metrics.generation_length, choice.text.num_tokens)
        self._metrics.observe(self._metrics.duration, time.monotonic() - self.arrival_s)


def params_of_choices(params: SamplingParams) -> Sequence[SamplingParams]:
    """One set of parameters per choice: with a seed, each choice has its own, so that n answers differ and repeat."""
    if params.n == 1:
        return (params,)
    seeds = [None if params.seed is None else nth_seed(params.seed, i) for i in range(params.n)]
    return [msgspec.structs.replace(params, n=1, seed=seed) for seed in seeds]
