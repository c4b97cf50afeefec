"""Who is still being served, and the order of a graceful end.

    serving ─begin()─▶ draining: not ready, still accepting, answers ask for a new connection ─cut()─▶ cutting: what runs is ended

`proxy` enters each request, `app` drives the phases. No I/O.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Drain:
    """Phases of the process and the tasks of the requests in it."""

    def __init__(self) -> None:
        self.draining = False
        self.cutting = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        self.draining = True

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count the current task as a running request."""
        task = asyncio.current_task()
        assert task is not None, "requests are handled in tasks"
        self._tasks.add(task)
        self._idle.clear()
        try:
            yield
        finally:
            self._tasks.discard(task)
            if not self._tasks:
                self._idle.set()

    async def wait_idle(self, timeout_s: float) -> int:
        """Wait until no request runs; return how many still do after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            pass
        return len(self._tasks)

    def cut(self) -> None:
        """End what still runs: streams say so in an `error` event first."""
        self.cutting = True
        for task in self._tasks:
            task.cancel()
