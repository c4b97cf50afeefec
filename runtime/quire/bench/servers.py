"""A server process of our own: start it, wait for it, watch its memory, end it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from quire.bench import client, processes
from quire.errors import EngineDeadError

POLL_S = 0.02
SAMPLE_S = 0.5
STOP_S = 20.0
HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. ready_s: seconds from the start of the process until its health route said so."""

    url: str
    pid: int
    ready_s: float
    started_s: float


def quire_command(given: Mapping[str, Any], port: int) -> list[str]:
    """`quire serve` with the flags of a command line: field to text, lists repeated."""
    command = [sys.executable, "-m", "quire.entrypoints.cli", "serve"]
    for name, value in {**given, "host": HOST, "port": str(port), "log_level": "warning"}.items():
        if name != "model":
            flag = "--" + name.replace("_", "-")
            command += [f"{flag}={one}" for one in (value if isinstance(value, tuple) else (value,))]
    return [*command, "--", given["model"]] if "model" in given else command


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server((HOST, 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def running(
    command: Sequence[str],
    port: int,
    *,
    health: str = "/health/ready",
    deadline_s: float = 1800.0,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[Running]:
    """The server that a command line starts; ended with its whole process group, also where we are told to end (SIGINT, SIGTERM).

    Raises EngineDeadError with its last line.
    """
    url = f"http://{HOST}:{port}"
    with tempfile.TemporaryFile() as output, _ended_by(signal.SIGTERM):
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env=environment if environment is None else {**os.environ, **environment},
        )
        try:
            while not await _healthy(url, health):
                if process.returncode is not None:
                    raise EngineDeadError(f"{command[0]} ended with status {process.returncode}: {_last_line(output)}")
                if time.perf_counter() - began > deadline_s:
                    raise EngineDeadError(f"{command[0]} was not ready within {deadline_s:.0f} s: {_last_line(output)}")
                await asyncio.sleep(POLL_S)
            yield Running(url, process.pid, time.perf_counter() - began, began)
        finally:
            await _stop(process)


@contextlib.contextmanager
def _ended_by(number: signal.Signals) -> Iterator[None]:
    """The signal cancels the task, so that what it started is ended, and then ends the program with the status of that signal."""
    loop, task, told = asyncio.get_running_loop(), asyncio.current_task(), False

    def end() -> None:
        nonlocal told
        told = True
        if task is not None:
            task.cancel()

    loop.add_signal_handler(number, end)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise SystemExit(128 + number) from None
        raise
    finally:
        loop.remove_signal_handler(number)


async def _healthy(url: str, path: str) -> bool:
    try:
        return (await client.get(url, path))[0] == 200
    except OSError:
        return False


def _last_line(output: Any) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Politely, then by force; the process leads a group of its own, which ends with it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await process.wait()
            return


@asynccontextmanager
async def watched(pid: int) -> AsyncIterator[list[int]]:
    """PSS in bytes of a process tree, sampled while the block runs; at least once, at its end."""
    samples: list[int] = []

    async def sample() -> None:
        while True:
            samples.append(await asyncio.to_thread(processes.pss_bytes, pid))
            await asyncio.sleep(SAMPLE_S)

    task = asyncio.create_task(sample())
    try:
        yield samples
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        samples.append(processes.pss_bytes(pid))
