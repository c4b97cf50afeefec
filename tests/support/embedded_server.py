"""`quire serve` with the embedded model: the real process, engine and text."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

START_S = 240


@dataclass(frozen=True)
class Embedded:
    """A running server."""

    url: str
    handle: asyncio.subprocess.Process


@asynccontextmanager
async def embedded_server(*flags: str, model: str = "smollm2") -> AsyncIterator[Embedded]:
    """Serve until the block ends. flags: more of `quire serve`."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    handle = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quire.entrypoints.cli", "serve", model, "--host=127.0.0.1", f"--port={port}",
        "--log-level=warning", *flags,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        assert handle.stdout is not None
        async with asyncio.timeout(START_S):
            while b"curl" not in (line := await handle.stdout.readline()):
                assert line, f"the server ended with status {await handle.wait()}; standard error has the cause"
        yield Embedded(f"http://127.0.0.1:{port}", handle)
    finally:
        if handle.returncode is None:
            handle.terminate()
        await handle.communicate()
