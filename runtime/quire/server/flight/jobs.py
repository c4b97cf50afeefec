"""One HTTP request that generates: its sequences, and what comes back for them.

A job is fed by the frontend (`deliver`, `fail`; synchronous, they never wait) and iterated by one route. It ends sequences
at stop strings, and keeps the numbers that usage, metrics and the access log need.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.errors import RequestError
from quire.filters import Refused
from quire.metrics import EngineMetrics
from quire.outputs.choice import Choice, Piece, lost
from quire.request import FinishReason, TokenDelta
from quire.server.flight.filtering import FilteredAnswer
from quire.server.flight.work import Usage, Work


@dataclass(slots=True)
class _Times:
    """When a sequence was scheduled, and when its first and its last tokens came, monotonic."""

    scheduled_s: float | None = None
    first_s: float | None = None
    last_s: float = 0.0


class Job(Work[Choice]):
    """See the module. Iterating ends when every choice has ended; it raises what the job failed with.

    texts: where it shall be kept, what each choice has said so far. filtered: what the text of each choice passes through.
    """

    def __init__(
        self,
        choices: list[Choice],
        metrics: EngineMetrics,
        abort: Callable[[list[str]], None],
        *,
        queue_timeout_s: float,
        keep_texts: bool = False,
        filtered: list[FilteredAnswer] | None = None,
    ) -> None:
        super().__init__(choices, metrics, abort, queue_timeout_s=queue_timeout_s)
        if keep_texts:
            self.texts = [""] * len(choices)
        self._filtered = filtered
        self._times = [_Times() for _ in choices]

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
        times = self._times[choice.index]
        if not choice.scheduled and delta.queue_s is not None:
            times.scheduled_s = self.arrival_s + delta.queue_s
        if count := len(delta.token_ids):
            now, metrics = time.monotonic(), self._metrics
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
        super().deliver(choice, delta)

    def __aiter__(self) -> Job:
        return self

    async def __anext__(self) -> Piece:
        while True:
            if not self.unfinished:
                raise StopAsyncIteration
            choice, delta = await self._next()
            if choice.finish_reason is None and (piece := await self._piece(choice, delta)) is not None:
                return piece

    async def _piece(self, choice: Choice, delta: TokenDelta) -> Piece | None:
        try:
            piece, stopped = choice.take(delta)
        except RequestError as exc:
            self.finish(choice, FinishReason.ERROR, exc)
            if lost(self.choices, choice):
                raise
            return None
        if self._filtered is not None:
            piece, refused = await self._passed(self._filtered[choice.index], piece)
            stopped = stopped or (refused and delta.finish_reason is None)
        if stopped:
            self._abort([choice.request_id])
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

    def end(self, index: int) -> None:
        """A choice needs nothing more: the engine forgets it, its reason is `stop`."""
        self._abort([self.choices[index].request_id])
        self.finish(self.choices[index], FinishReason.STOP)

    def finish(self, choice: Choice, reason: FinishReason, cause: RequestError | None = None) -> None:
        super().finish(choice, reason, cause)
        metrics, times = self._metrics, self._times[choice.index]
        metrics.observe(metrics.generation_length, choice.text.num_tokens)
        if times.first_s is None:
            return
        metrics.observe(metrics.decode_time, times.last_s - times.first_s)
        if times.scheduled_s is not None:
            metrics.observe(metrics.inference_time, times.last_s - times.scheduled_s)
        if choice.text.num_tokens > 1:
            metrics.observe(metrics.tpot, (times.last_s - times.first_s) / (choice.text.num_tokens - 1))
