"""One HTTP request's share of the engine: its sequences, and what comes back for them.

A job is fed by the frontend (`deliver`, `fail`; synchronous, they never wait) and iterated by one route. It ends sequences
at stop strings, and keeps the numbers that usage, metrics and the access log need.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from quire.errors import OverloadedError, QuireError, RequestError
from quire.filters import Refused
from quire.metrics import EngineMetrics
from quire.outputs.choice import Choice, Piece, lost
from quire.request import FinishReason, TokenDelta
from quire.server.filtering import FilteredAnswer
from quire.server.inbox import Inbox


@dataclass(frozen=True)
class Usage:
    """Tokens of a job. A prompt counts once however many choices it has; every generated token counts, also those of a
    cut character and the one that ended the answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(slots=True)
class _Times:
    """When a sequence was scheduled, and when its first and its last tokens came, monotonic."""

    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0


class Job:
    """See the module. Iterating ends when every choice has ended; it raises what the job failed with.

    abort: tells the engine to forget sequences. queue_timeout_s: how long the job may wait for its first scheduling. texts: where it
    shall be kept, what each choice has said so far. filtered: what the text of
    each choice passes through.
    """

    def __init__(
        self,
        choices: list[Choice],
        metrics: EngineMetrics,
        abort: Callable[[list[str]], Awaitable[None]],
        *,
        queue_timeout_s: float,
        keep_texts: bool = False,
        filtered: list[FilteredAnswer] | None = None,
    ) -> None:
        self.choices = choices
        self.arrival_s = time.monotonic()
        self.first_token_s: float | None = None
        self.texts: list[str] | None = [""] * len(choices) if keep_texts else None
        self._filtered = filtered
        self._metrics = metrics
        self._abort = abort
        self._queue_timeout_s = queue_timeout_s
        self._times = [_Times() for _ in choices]
        self._reports = Inbox()

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

    @property
    def num_tokens(self) -> int:
        """Tokens that the engine has worked on for it: of prompts that were scheduled, and generated ones."""
        prompts = {choice.prompt_index: len(choice.prompt_token_ids) for choice in self.choices if choice.scheduled}
        return sum(prompts.values()) + sum(choice.text.num_tokens for choice in self.choices)

    def deliver(self, choice: Choice, delta: TokenDelta) -> None:
        """A report of the engine. Times are taken here, before anything can wait."""
        now, metrics, times = time.monotonic(), self._metrics, self._times[choice.index]
        if choice.see(delta):
            if delta.queue_s is not None:
                times.scheduled_s = self.arrival_s + delta.queue_s
                metrics.observe(metrics.queue_time, delta.queue_s)
            metrics.count(metrics.prompt_tokens, len(choice.prompt_token_ids))
        if count := len(delta.token_ids):
            if times.first_s is None:
                times.first_s = now
                metrics.observe(metrics.ttft, now - self.arrival_s)
                if times.scheduled_s is not None:
                    metrics.observe(metrics.prefill_time, now - times.scheduled_s)
            else:
                metrics.observe(metrics.itl, (now - times.last_s) / count)
            times.last_s = now
            self.first_token_s = self.first_token_s or now
            metrics.count(metrics.generation_tokens, count)
        self._reports.put(choice, delta)

    def fail(self, error: QuireError) -> None:
        """The job cannot go on: iterating raises this."""
        self._reports.fail(error)

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
            return await self._reports.get()
        try:
            async with asyncio.timeout(self.arrival_s + self._queue_timeout_s - time.monotonic()):
                return await self._reports.get()
        except TimeoutError:
            raise OverloadedError(
                f"the request waited {self._queue_timeout_s:g} s (--queue-timeout) without being scheduled",
                reason="queue_timeout",
                retry_after_s=5,
            ) from None

    async def _piece(self, choice: Choice, delta: TokenDelta) -> Piece | None:
        try:
            piece, stopped = choice.take(delta)
        except RequestError:
            self.finish(choice, FinishReason.ERROR)
            if lost(self.choices, choice):
                raise
            return None
        if self._filtered is not None:
            piece, refused = await self._passed(self._filtered[choice.index], piece)
            stopped = stopped or (refused and delta.finish_reason is None)
        if stopped:
            await self._abort([choice.request_id])
        if self.texts is not None:
            self.texts[choice.index] += piece.text
        if piece.finish_reason is not None:
            self.finish(choice, piece.finish_reason)
        return piece if piece.text or piece.logprobs or piece.finish_reason is not None else None

    async def _passed(self, filtered: FilteredAnswer, piece: Piece) -> tuple[Piece, bool]:
        """What the filters leave of a piece; True with it where they refuse, which ends the choice."""
        try:
            text = await filtered.push(piece.text, final=piece.finish_reason is not None)
        except Refused:
            return replace(piece, text="", finish_reason=FinishReason.CONTENT_FILTER), True
        return replace(piece, text=text), False

    async def end(self, index: int) -> None:
        """A choice needs nothing more: the engine forgets it, its reason is `stop`."""
        await self._abort([self.choices[index].request_id])
        self.finish(self.choices[index], FinishReason.STOP)

    def finish(self, choice: Choice, reason: FinishReason) -> None:
        """Book the end of a choice."""
        choice.finish_reason = reason
        metrics, times = self._metrics, self._times[choice.index]
        metrics.finished(reason.value)
        metrics.observe(metrics.prompt_length, len(choice.prompt_token_ids))
        metrics.observe(metrics.generation_length, choice.text.num_tokens)
        metrics.observe(metrics.duration, time.monotonic() - self.arrival_s)
        if times.first_s is None:
            return
        metrics.observe(metrics.decode_time, times.last_s - times.first_s)
        if times.scheduled_s is not None:
            metrics.observe(metrics.inference_time, times.last_s - times.scheduled_s)
        if choice.text.num_tokens > 1:
            metrics.observe(metrics.tpot, (times.last_s - times.first_s) / (choice.text.num_tokens - 1))
