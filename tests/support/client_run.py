"""Run a program of `tests/clients` in the environment of somebody else's client."""

from __future__ import annotations

import asyncio
from pathlib import Path

from client_environments import environment

SHOWN = 8000
"""Characters of what a program said that are told of its failure."""


async def run_client(*command: str | Path, folder: Path, **variables: str) -> str:
    """What a program prints; it must end well. folder: where it runs, and what it takes for its caches. variables: of its environment."""
    handle = await asyncio.create_subprocess_exec(
        *map(str, command),
        cwd=folder,
        env=environment() | {"HF_HOME": str(folder / "hf")} | variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await handle.communicate()
    finally:
        if handle.returncode is None:
            handle.kill()
            await handle.wait()
    said = out.decode(errors="replace")
    assert handle.returncode == 0, f"{command[1]} ended with status {handle.returncode}: {said[-SHOWN:]}"
    return said
