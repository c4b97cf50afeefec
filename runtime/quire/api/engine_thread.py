"""The thread that serves an engine process for callers in other event loops.

Coroutines and methods marked "on the thread" run in its loop, one at a time; all state of requests is changed there. A
caller subscribes to a request, is woken when there is something new, and takes it: outputs wait merged in one place, however slow
the caller is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Coroutine, Iterable
from concurrent.futures import Future
from typing import Any

from quire.api.requests import engine_request
from quire.config import EngineConfig
from quire.engine.client import EngineClient
from quire.errors import EngineDeadError, QuireError, RequestError
from quire.outputs import RequestOutput
from quire.outputs.choice import Choice
from quire.outputs.state import RequestState
from quire.request import EngineReady, StepOutputs, StepStats, TokenDelta

SILENCE_S = 30.0
"""A working engine that says nothing for so long is not healthy: steps are shorter, and idle it speaks every second."""


class Subscriber:
    """A caller that waits for one request, in its own loop. Both sides touch the state, one at a time."""

    def __init__(self, state: RequestState, *, priority: int, cache_salt: str | None) -> None:
        self.state = state
        self.priority = priority
        self.cache_salt = cache_salt
        self.loop = asyncio.get_running_loop()
        self._error: QuireError | None = None
        self._news = asyncio.Event()
        self._lock = threading.Lock()

    async def next(self) -> RequestOutput:
        """The next output; raises what the request failed with."""
        while True:
            self._news.clear()
            with self._lock:
                if self.state.error is not None:
                    raise self.state.error
                output = self.state.output()
            if output is not None:
                return output
            if self._error is not None:
                raise self._error
            await self._news.wait()

    def wake(self) -> None:
        """There is something new; on the caller's loop."""
        self._news.set()

    def take(self, choice: Choice, delta: TokenDelta) -> bool:
        """Add a report; True where the engine must forget the sequence. On the thread."""
        with self._lock:
            return self.state.take(choice, delta)

    def end(self) -> list[str]:
        """End what goes on, as aborted; the ids of its sequences. On the thread."""
        with self._lock:
            return self.state.abort()

    def fail(self, error: QuireError) -> None:
        """Nothing more will come. On the thread."""
        self._error = error


class EngineThread:
    """See the module. `error` is set when the engine has ended; `stats` is its latest report."""

    def __init__(self, config: EngineConfig, *, load_timeout_s: float) -> None:
        """Start thread and engine, and wait until it is ready. Raises ConfigError, ModelError or EngineDeadError."""
        self.error: EngineDeadError | None = None
        self.stats: StepStats | None = None
        self._policy = config.scheduler_policy
        self._requests: dict[str, Subscriber] = {}
        self._choices: dict[str, tuple[Subscriber, Choice]] = {}
        self._last_sign_s = time.monotonic()
        self._gate = threading.Lock()  # nothing is handed to the loop once `error` is set and it is about to stop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="quire-engine", daemon=True)
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(
            EngineClient.start(config, deadline_s=load_timeout_s, log_level=_level()), self._loop
        )
        try:
            self._client = starting.result()
        except BaseException:
            starting.cancel()
            self._stop_loop()
            raise
        self.ready: EngineReady = self._client.ready
        self._pumping = asyncio.run_coroutine_threadsafe(self._pump(), self._loop)

    # --- from callers' threads ------------------------------------------------------------------------------------

    async def submit(self, subscriber: Subscriber) -> None:
        """Hand a request over. Raises RequestError for an id in use, EngineDeadError where the engine has ended."""
        await asyncio.wrap_future(self._hand_over(self._submit(subscriber)))

    def leave(self, subscriber: Subscriber) -> None:
        """The caller wants no more: what goes on is aborted in the engine. Never waits; safe to call in any state."""
        with contextlib.suppress(EngineDeadError):
            self._hand_over(self._leave(subscriber))

    async def abort(self, request_ids: list[str]) -> None:
        """End requests; their callers get a last output."""
        await asyncio.wrap_future(self._hand_over(self._abort(request_ids)))

    async def reset_prefix_cache(self) -> None:
        """Requests that come after find nothing cached."""
        await asyncio.wrap_future(self._hand_over(self._client.reset_prefix_cache()))

    def check(self) -> None:
        """Raises EngineDeadError where the engine has ended or is silent in spite of work."""
        if self.error is not None:
            raise self.error
        silence_s = time.monotonic() - self._last_sign_s
        if self._requests and silence_s > SILENCE_S:
            raise EngineDeadError(f"the engine has work and gave no sign of life for {silence_s:.0f} s")

    def close(self) -> None:
        """End engine and thread; callers that wait get EngineDeadError."""
        with self._gate:
            self.error = self.error or EngineDeadError("the engine is shut down")
        if self._loop.is_closed():
            return
        if threading.current_thread() is self._thread:  # by the garbage collector, at an unlucky moment
            self._loop.create_task(self._close()).add_done_callback(lambda _: self._loop.stop())
            return
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._stop_loop()

    @staticmethod
    def new_id() -> str:
        """An id for a request that brings none."""
        return uuid.uuid4().hex

    def _hand_over(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        with self._gate:
            if self.error is None:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise self.error

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # --- on the thread --------------------------------------------------------------------------------------------

    async def _submit(self, subscriber: Subscriber) -> None:
        state = subscriber.state
        if state.request_id in self._requests:
            raise RequestError(f"the request id {state.request_id!r} is already in use", param="request_id")
        request = engine_request(
            state, policy=self._policy, priority=subscriber.priority, cache_salt=subscriber.cache_salt
        )
        if not self._requests:
            self._last_sign_s = time.monotonic()  # silence counts only while there is work
        self._requests[state.request_id] = subscriber
        for choice in state.choices:
            self._choices[choice.request_id] = (subscriber, choice)
        try:
            await self._client.add(request)
        except RequestError:
            self._forget(subscriber)
            raise

    async def _leave(self, subscriber: Subscriber) -> None:
        if self._requests.get(subscriber.state.request_id) is subscriber:
            self._forget(subscriber)
            if left := subscriber.end():
                await self._client.abort(left)

    async def _abort(self, request_ids: list[str]) -> None:
        left: list[str] = []
        ended = [self._requests[name] for name in request_ids if name in self._requests]
        for subscriber in ended:
            self._forget(subscriber)
            left += subscriber.end()
        self._wake(ended)
        if left:
            await self._client.abort(left)

    async def _pump(self) -> None:
        """Distribute what the engine reports until it ends; then every caller that waits gets the cause."""
        try:
            async for report in self._client.outputs():
                if stopped := self._distribute(report):
                    await self._client.abort(stopped)
            cause = EngineDeadError("the engine is shut down")
        except EngineDeadError as exc:
            cause = exc
        except Exception as exc:  # noqa: BLE001  (a fault of ours must not leave callers waiting)
            cause = EngineDeadError(f"the engine's reports could not be read: {type(exc).__name__}: {exc}")
        self._die(cause)

    def _distribute(self, report: StepOutputs) -> list[str]:
        """Give reports to their requests; the ids of sequences that a stop string ended."""
        self._last_sign_s = time.monotonic()
        self.stats = report.stats
        stopped: list[str] = []
        touched: dict[str, Subscriber] = {}
        for delta in report.deltas:
            if (found := self._choices.get(delta.request_id)) is None:
                continue
            subscriber, choice = found
            touched[subscriber.state.request_id] = subscriber
            if subscriber.take(choice, delta):
                stopped.append(delta.request_id)
        for subscriber in touched.values():
            if subscriber.state.finished:
                self._forget(subscriber)
        self._wake(touched.values())
        return stopped

    def _die(self, cause: EngineDeadError) -> None:
        with self._gate:
            self.error = self.error or cause
        waiting = list(self._requests.values())
        for subscriber in waiting:
            subscriber.fail(self.error)
        self._requests.clear()
        self._choices.clear()
        self._wake(waiting)

    def _forget(self, subscriber: Subscriber) -> None:
        self._requests.pop(subscriber.state.request_id, None)
        for choice in subscriber.state.choices:
            self._choices.pop(choice.request_id, None)

    @staticmethod
    def _wake(subscribers: Iterable[Subscriber]) -> None:
        """One call into each caller's loop, however many of its requests have news."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Subscriber]] = {}
        for subscriber in subscribers:
            by_loop.setdefault(subscriber.loop, []).append(subscriber)
        for loop, woken in by_loop.items():
            with contextlib.suppress(RuntimeError):  # that loop is closed: nobody waits in it
                loop.call_soon_threadsafe(_wake_all, woken)

    async def _close(self) -> None:
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait(others, timeout=5.0) if others else None
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self._die(EngineDeadError("the engine is shut down"))


def _level() -> str:
    """The engine process says what the program hears."""
    return "info" if logging.getLogger("quire").isEnabledFor(logging.INFO) else "warning"


def _wake_all(subscribers: list[Subscriber]) -> None:
    for subscriber in subscribers:
        subscriber.wake()
