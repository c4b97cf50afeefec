"""The server's end of the engine process: start it, talk to it, notice its death, end it.

Asyncio only. The process (`spawn`) is never forked, it has an interpreter of its own. It dies with this one: by the kernel's
parent-death signal on Linux, by its standard input closing everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
import zmq
import zmq.asyncio

from quire.config import EngineConfig
from quire.engine import wire
from quire.engine.spawn import Spawned, spawn
from quire.errors import ConfigError, EngineDeadError, ModelError, QuireError, RequestError
from quire.logs import LogFormat
from quire.request import (
    AbortRequest,
    AddRequest,
    EngineFailed,
    EngineReady,
    PoolRequest,
    ResetPrefixCache,
    Shutdown,
    StepOutputs,
    ToEngine,
)

CLOSE_DEADLINE_S = 5.0
LAST_WORDS_S = 0.5
"""What a process sent arrives within this time of its end."""
_KINDS: dict[str, type[QuireError]] = {"ConfigError": ConfigError, "ModelError": ModelError}


class EngineClient:
    """A running engine process. Create with `start`, end with `close`.

    `ready` is what the engine said when it came up. One consumer of `outputs` at a time.
    """

    ready: EngineReady

    def __init__(self, spawned: Spawned) -> None:
        self._spawned = spawned
        endpoints = wire.endpoints(spawned.folder)
        self._context = zmq.asyncio.Context()
        self._requests = self._bind(zmq.PUSH, endpoints.requests)
        self._outputs = self._bind(zmq.PULL, endpoints.outputs)
        self._exited = _exit_of(spawned)
        self._closed = False
        self._failure: EngineDeadError | None = None

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        *,
        deadline_s: float = 600.0,
        log_level: str = "info",
        log_format: LogFormat = "text",
        spawned: Spawned | None = None,
    ) -> EngineClient:
        """Configure an engine's process and wait until it is ready. spawned: the process; default: a new one.

        Raises ModelError or ConfigError with the engine's own sentence, EngineDeadError where it died or took longer than
        deadline_s seconds.
        """
        client = cls(spawned or spawn())
        try:
            client._configure(config, log_level, log_format)
            async with asyncio.timeout(deadline_s):
                client.ready = await client._first_words()
        except TimeoutError:
            await client.close()
            raise EngineDeadError(
                f"the engine was not ready within {deadline_s:.0f} s; see its log lines above"
            ) from None
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._spawned.process.pid

    async def add(self, request: AddRequest | PoolRequest) -> None:
        """Hand over a request; what becomes of it comes through `outputs`. Raises RequestError where it cannot travel."""
        await self._send(request)

    async def abort(self, request_ids: Iterable[str]) -> None:
        """Forget requests and free their blocks; no delta follows for them."""
        await self._send(AbortRequest(request_ids=list(request_ids)))

    async def reset_prefix_cache(self) -> None:
        """Forget all cached prompts, for requests sent after this."""
        await self._send(ResetPrefixCache())

    async def outputs(self) -> AsyncIterator[StepOutputs]:
        """What each step produced, heartbeats included (one a second at least, between steps).

        Ends after `close`; raises EngineDeadError with the cause when the process is gone.
        """
        while not self._closed:
            message = await self._receive()
            if message is None:
                return
            if isinstance(message, StepOutputs):
                yield message
            elif isinstance(message, EngineFailed):
                self._failure = EngineDeadError(message.message)
                raise self._failure

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        """End the process: politely for some seconds, or until `at_once`, then by signal. Safe to call twice and in any state."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._exited.done() and hasattr(self, "ready"):  # before that it listens to nothing
                with contextlib.suppress(zmq.Again):
                    await self._requests.send(wire.encoder.encode(Shutdown()), zmq.NOBLOCK)
                hurry = asyncio.ensure_future((at_once or asyncio.Event()).wait())
                either: list[asyncio.Future[Any]] = [self._exited, hurry]
                try:
                    await asyncio.wait(either, timeout=CLOSE_DEADLINE_S, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    hurry.cancel()
        finally:
            self._spawned.end()
            self._context.destroy(linger=0)

    def _configure(self, config: EngineConfig, log_level: str, log_format: LogFormat) -> None:
        """One line, which fits into the pipe, so that this never waits."""
        settings = {
            "config": config.model_dump(mode="json"),
            "log_level": log_level,
            "log_format": log_format,
            "spawned_s": self._spawned.spawned_s,
        }
        stdin = self._spawned.process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # its death is reported by _receive
            stdin.write(msgspec.json.encode(settings) + b"\n")

    async def _first_words(self) -> EngineReady:
        message = await self._receive()
        if isinstance(message, EngineFailed):
            raise _KINDS.get(message.kind, EngineDeadError)(message.message)
        assert isinstance(message, EngineReady), message
        return message

    async def _receive(self) -> StepOutputs | EngineReady | EngineFailed | None:
        """The next message; None once closed. What a dying process sent before its end still arrives first."""
        receiving = asyncio.ensure_future(self._outputs.recv())
        try:
            either: list[asyncio.Future[Any]] = [receiving, self._exited]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                await asyncio.wait([receiving], timeout=LAST_WORDS_S)
            if self._closed:
                return None
            if receiving.done():
                return wire.from_engine.decode(receiving.result())
        finally:
            receiving.cancel()
        self._failure = EngineDeadError(_cause_of_death(self._exited.result()))
        raise self._failure

    async def _send(self, message: ToEngine) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed or self._exited.done():
            status = self._exited.result() if self._exited.done() else None
            raise EngineDeadError("the engine is shut down" if status is None else _cause_of_death(status))
        try:
            frame = wire.encoder.encode(message)
        except (TypeError, ValueError, OverflowError, RecursionError) as exc:  # of what no check looks into: extra_args
            raise RequestError(f"the request cannot be sent to the engine: {exc}", code="invalid_value") from exc
        await self._requests.send(frame)

    def _bind(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.bind(address)
        return socket


def _exit_of(spawned: Spawned) -> asyncio.Future[int]:
    """The exit status, when there is one. A thread waits for it, as not every system can tell an event loop."""
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[int] = loop.create_future()

    def settle(status: int) -> None:
        if not exited.done():
            exited.set_result(status)

    def wait() -> None:
        status = spawned.process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(settle, status)

    threading.Thread(target=wait, name="quire-engine-exit", daemon=True).start()
    return exited


def _cause_of_death(status: int) -> str:
    if status >= 0:
        return f"the engine process ended with status {status}; see its log lines above"
    name = signal.Signals(-status).name
    hint = " (out of memory? compare the memory plan in the log with the limit)" if -status == signal.SIGKILL else ""
    return f"the engine process was killed by {name}{hint}"
