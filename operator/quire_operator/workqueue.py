"""A work queue as controllers have it: a key is worked on by one worker at a time, many requests for it become one.

`add` while the key is being worked on runs it once more afterwards. A failure is tried again with growing delay and
holds up no other key. Knows nothing of Kubernetes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from quire_operator import telemetry
from quire_operator.backoff import backoff_s

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 60.0


@dataclass(frozen=True)
class Outcome:
    """What a look at a key ended with: look again after `again_s` (None: only when asked); `failed`: also with back-off, what comes first."""

    again_s: float | None = None
    failed: bool = False


class WorkQueue(Generic[K]):
    """`deadline_s` bounds one look; one that takes longer is cancelled and counts as failed."""

    def __init__(self, work: Callable[[K], Awaitable[Outcome]], *, deadline_s: float = 120.0) -> None:
        self._work = work
        self._deadline_s = deadline_s
        self._ready: asyncio.Queue[K] = asyncio.Queue()
        self._queued: set[K] = set()
        self._busy: set[K] = set()
        self._dirty: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def add(self, key: K) -> None:
        """Look at the key soon."""
        self._drop_timer(key)
        if key in self._busy:
            self._dirty.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.put_nowait(key)
            telemetry.QUEUE_DEPTH.inc()

    def add_after(self, key: K, delay_s: float) -> None:
        """Look at the key after a while, unless something asks earlier; the earliest of several wins."""
        loop = asyncio.get_running_loop()
        known = self._timers.get(key)
        if known is not None and known.when() <= loop.time() + delay_s:
            return
        self._drop_timer(key)
        self._timers[key] = loop.call_later(delay_s, self.add, key)

    async def run(self, workers: int) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(workers):
                    group.create_task(self._worker(), name=f"worker-{number}")
        finally:
            for key in list(self._timers):
                self._drop_timer(key)

    async def _worker(self) -> None:
        while True:
            key = await self._ready.get()
            self._queued.discard(key)
            telemetry.QUEUE_DEPTH.dec()
            self._busy.add(key)
            try:
                outcome = await self._attempt(key)
            finally:
                self._busy.discard(key)
            self._settle(key, outcome)

    async def _attempt(self, key: K) -> Outcome:
        limit = asyncio.timeout(self._deadline_s)
        try:
            async with limit:
                with telemetry.RECONCILE_SECONDS.time():
                    return await self._work(key)
        except Exception as error:
            if isinstance(error, TimeoutError) and limit.expired():
                log.error("%s took longer than %.0f s; it is tried again", key, self._deadline_s)
                telemetry.RECONCILE_ERRORS.labels(reason="deadline").inc()
            else:
                log.exception("%s failed; it is tried again", key)
                telemetry.RECONCILE_ERRORS.labels(reason=type(error).__name__).inc()
        return Outcome(failed=True)

    def _settle(self, key: K, outcome: Outcome) -> None:
        if outcome.failed:
            self._failures[key] = self._failures.get(key, 0) + 1
            self.add_after(key, backoff_s(self._failures[key], BACKOFF_MIN_S, BACKOFF_MAX_S))
        else:
            self._failures.pop(key, None)
        if outcome.again_s is not None:
            self.add_after(key, outcome.again_s)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def _drop_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
