"""The server's end of the engine process: start it, talk to it, notice its death, end it.

Asyncio only. The process is spawned, never forked, with an interpreter of its own. It dies with this one: by the kernel's
parent-death signal on Linux, by its standard input closing everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable

import msgspec
import zmq
import zmq.asyncio

from quire.config import EngineConfig
from quire.engine import wire
from quire.errors import ConfigError, EngineDeadError, ModelError, QuireError
from quire.request import (
    AbortRequest,
    AddRequest,
    EngineFailed,
    EngineReady,
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

    def __init__(self, folder_endpoints: wire.Endpoints) -> None:
        self._endpoints = folder_endpoints
        self._context = zmq.asyncio.Context()
        self._requests = self._bind(zmq.PUSH, folder_endpoints.requests)
        self._outputs = self._bind(zmq.PULL, folder_endpoints.outputs)
        self._process: asyncio.subprocess.Process | None = None
        self._exited: asyncio.Task[int] | None = None
        self._closed = False
        self._failure: EngineDeadError | None = None

    @classmethod
    async def start(cls, config: EngineConfig, *, deadline_s: float = 600.0, log_level: str = "info") -> EngineClient:
        """Spawn the engine and wait until it is ready.

        Raises ModelError or ConfigError with the engine's own sentence, EngineDeadError where it died or took longer than
        deadline_s seconds.
        """
        client = cls(wire.endpoints(wire.private_folder()))
        try:
            await client._spawn(config, log_level)
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
        assert self._process is not None
        return self._process.pid

    async def add(self, request: AddRequest) -> None:
        """Hand over a request; what becomes of it comes through `outputs`."""
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

    async def close(self) -> None:
        """End the process: politely for some seconds, then by signal. Safe to call twice and in any state."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._process is not None and self._exited is not None:
                await self._end(self._process, self._exited)
        finally:
            self._context.destroy(linger=0)
            shutil.rmtree(self._endpoints.folder, ignore_errors=True)

    async def _end(self, process: asyncio.subprocess.Process, exited: asyncio.Task[int]) -> None:
        if not exited.done() and hasattr(self, "ready"):  # before that it listens to nothing
            with contextlib.suppress(zmq.Again):
                await self._requests.send(wire.encoder.encode(Shutdown()), zmq.NOBLOCK)
            await asyncio.wait([exited], timeout=CLOSE_DEADLINE_S)
        if not exited.done():
            process.kill()
        await exited
        if process.stdin is not None:
            process.stdin.close()

    async def _spawn(self, config: EngineConfig, log_level: str) -> None:
        settings = {"config": config.model_dump(mode="json"), "log_level": log_level, "spawned_s": time.monotonic()}
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "quire.engine.process",
            str(self._endpoints.folder),
            stdin=asyncio.subprocess.PIPE,
            env=_environment(),
        )
        self._exited = asyncio.create_task(self._process.wait())
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(settings) + b"\n")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its death is reported by _receive
            await self._process.stdin.drain()

    async def _first_words(self) -> EngineReady:
        message = await self._receive()
        if isinstance(message, EngineFailed):
            raise _KINDS.get(message.kind, EngineDeadError)(message.message)
        assert isinstance(message, EngineReady), message
        return message

    async def _receive(self) -> StepOutputs | EngineReady | EngineFailed | None:
        """The next message; None once closed. What a dying process sent before its end still arrives first."""
        assert self._exited is not None
        receiving = asyncio.ensure_future(self._outputs.recv())
        try:
            await asyncio.wait([receiving, self._exited], return_when=asyncio.FIRST_COMPLETED)
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
        if self._closed or self._exited is None or self._exited.done():
            status = self._exited.result() if self._exited is not None and self._exited.done() else None
            raise EngineDeadError("the engine is shut down" if status is None else _cause_of_death(status))
        await self._requests.send(wire.encoder.encode(message))

    def _bind(self, kind: int, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.bind(address)
        return socket


def _environment() -> dict[str, str]:
    """Ours, with this interpreter's search path, and the current folder kept off it.

    OpenMP threads that spin at barriers wait for a partner that has no CPU: with other load on 2 cores, a step of one sequence
    took 722 ms, and 160 ms with passive waiting. The variable is read when torch loads, and a user's own value wins.
    """
    path = os.pathsep.join(path for path in sys.path if path)
    return {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def _cause_of_death(status: int) -> str:
    if status >= 0:
        return f"the engine process ended with status {status}; see its log lines above"
    name = signal.Signals(-status).name
    hint = " (out of memory? compare the memory plan in the log with the limit)" if -status == signal.SIGKILL else ""
    return f"the engine process was killed by {name}{hint}"
