"""One HTTP request's share of the engine, whatever it asks for: what the frontend feeds, and edge, log and traces read.

`flight.jobs.Job` is one that generates, `pooling.job.PoolJob` one whose prompts become vectors.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from quire.errors import OverloadedError, QuireError, RequestError
from quire.metrics import EngineMetrics
from quire.request import FinishReason, TokenDelta
from quire.server.flight.inbox import Inbox, Indexed

T = TypeVar("T")


@dataclass(frozen=True)
class Usage:
    """Tokens of a job. A prompt counts once however many choices it has; every generated token counts, also those of a
    cut character and the one that ended the answer."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class One(Indexed, Protocol):
    """A sequence of the engine."""

    request_id: str
    scheduled: bool
    finish_reason: FinishReason | None

    @property
    def prompt_token_ids(self) -> Sequence[int]: ...

    @property
    def prompt_index(self) -> int:
        """The place of its prompt among those of the job."""
        ...

    def see(self, delta: TokenDelta) -> bool:
        """Note the first report of the engine; True where this is it."""
        ...


Own = TypeVar("Own", bound=One)


class Work(ABC, Generic[Own]):
    """See the module. abort: tells the engine to forget sequences. queue_timeout_s: how long it may wait for its first scheduling.

    texts: what was answered, where it is to be in the log.
    """

    def __init__(
        self,
        choices: list[Own],
        metrics: EngineMetrics,
        abort: Callable[[list[str]], None],
        *,
        queue_timeout_s: float,
    ) -> None:
        self.choices = choices
        self.arrival_s = time.monotonic()
        self.first_token_s: float | None = None
        self.num_scheduled = 0
        """Sequences that the engine has told of."""
        self._ended: set[int] = set()
        self.texts: list[str] | None = None
        self._metrics = metrics
        self._abort = abort
        self._queue_timeout_s = queue_timeout_s
        self._reports: Inbox[Own] = Inbox()

    @property
    @abstractmethod
    def usage(self) -> Usage: ...

    @property
    @abstractmethod
    def num_tokens(self) -> int:
        """Tokens that the engine has worked on for it."""

    @property
    def begun(self) -> bool:
        """The engine works on it, or has: it waits no more in the sense of `--max-queue-size` and `--queue-timeout`."""
        return self.num_scheduled > 0

    @property
    def num_live(self) -> int:
        """Sequences that the engine has not ended; of those that it has the last words may still wait here for a slow reader."""
        return len(self.choices) - len(self._ended)

    @property
    def unfinished(self) -> list[Own]:
        return [choice for choice in self.choices if choice.finish_reason is None]

    @property
    def finish_reasons(self) -> list[str]:
        """Of its choices, as logs have them."""
        return [choice.finish_reason.value if choice.finish_reason else "-" for choice in self.choices]

    def deliver(self, choice: Own, delta: TokenDelta) -> None:
        """A report of the engine. Times are taken here, before anything can wait."""
        metrics = self._metrics
        if choice.see(delta):
            self.num_scheduled += 1
            if delta.queue_s is not None:
                metrics.observe(metrics.queue_time, delta.queue_s)
            metrics.count(metrics.prompt_tokens, len(choice.prompt_token_ids))
        if delta.finish_reason is not None:
            self._ended.add(choice.index)
        self._reports.put(choice, delta)

    def fail(self, error: QuireError) -> None:
        """The job cannot go on: who waits for it gets this."""
        self._reports.fail(error)

    def finish(self, choice: Own, reason: FinishReason, cause: RequestError | None = None) -> None:
        """Book the end of a choice. cause: of FinishReason.ERROR; where the request is at fault, it counts as `refused`."""
        self._ended.add(choice.index)
        choice.finish_reason = reason
        self._metrics.finished("refused" if cause is not None and cause.status < 500 else reason.value)
        self._metrics.observe(self._metrics.prompt_length, len(choice.prompt_token_ids))
        self._metrics.observe(self._metrics.duration, time.monotonic() - self.arrival_s)

    async def _next(self) -> tuple[Own, TokenDelta]:
        """The next report; raises OverloadedError where none of it was scheduled in time."""
        if self.begun:
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


AnyWork = Work[Any]
