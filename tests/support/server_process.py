"""The real server process over a scripted engine (`serve_scripted.py`), for tests of it and its load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tiny_text import write_tokenizer

SCRIPT = Path(__file__).parent / "serve_scripted.py"


@dataclass
class Process:
    handle: asyncio.subprocess.Process
    http: httpx.AsyncClient
    port: int
    out: list[str] = field(default_factory=list)

    def send(self, number: signal.Signals) -> None:
        self.handle.send_signal(number)

    async def line(self, words: str) -> str:
        """The next line of standard output that contains `words`."""
        assert self.handle.stdout is not None
        async with asyncio.timeout(120):
            while line := (await self.handle.stdout.readline()).decode():
                self.out.append(line)
                if words in line:
                    return line
        raise AssertionError(f"{words!r} never came; there was {self.out}")

    async def end(self) -> tuple[int, str]:
        """Exit status and the last line of standard error."""
        async with asyncio.timeout(30):
            out, err = await self.handle.communicate()
        assert b"Traceback" not in err, err.decode()
        self.out += out.decode().splitlines()
        return self.handle.returncode or 0, (err.decode().splitlines() or [""])[-1]


@asynccontextmanager
async def process(
    folder: Path,
    mode: str = "",
    *,
    drain_s: float = 30,
    port: int | None = None,
    log: Path | None = None,
    **generation: float,
) -> AsyncIterator[Process]:
    """log: a file for standard error, where much is written. generation: entries of generation_config.json."""
    write_tokenizer(folder)
    if generation:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    (folder / "config.json").write_text("{}")
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
    with contextlib.nullcontext(asyncio.subprocess.PIPE) if log is None else log.open("wb") as stderr:
        handle = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SCRIPT),
            str(folder),
            str(port),
            mode,
            str(drain_s),
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as http:
            yield Process(handle, http, port)
    finally:
        if handle.returncode is None:
            handle.kill()
            await handle.wait()
