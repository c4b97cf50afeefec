"""`quire bench start`: from the start of the process to the first token over HTTP, and the memory it takes then and under W4."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.bench import client, processes, serve, servers
from quire.bench.client import Server
from quire.bench.report import Figure, Report, say
from quire.bench.workloads import Encode, Work, mixed, text
from quire.bench.workloads import Span as Lengths
from quire.config import EngineConfig

STAGE = "stage_"
FIGURES = (
    Figure("ready_s", "seconds from process start to ready", digits=2),
    Figure("first_token_s", "seconds from process start to the first token", digits=2),
    Figure("pss_bytes", "memory after the first token (PSS of all processes), MB", 1e-6, 0),
)
LOADED = Figure("loaded_pss_bytes", "memory under the load of `serve`, MB", 1e-6, 0)
CLIENTS = 16


def figures_of(runs: Sequence[Mapping[str, float]]) -> tuple[Figure, ...]:
    """The main ones, the seconds of each stage that the server tells of, and memory under load where it was measured."""
    stages = [name for name in runs[0] if name.startswith(STAGE)]
    shown = tuple(Figure(name, f"  of them, stage {name.removeprefix(STAGE)}", digits=2) for name in stages)
    return FIGURES[:2] + shown + FIGURES[2:] + ((LOADED,) if LOADED.name in runs[0] else ())


def run(config: EngineConfig, given: Mapping[str, Any], *, repeats: int, load: bool) -> Report:
    """Measure; raises QuireError. One start comes before, so that files are in the page cache. load: W4 after each start."""
    encode = serve.encoder(config)
    works = mixed(encode, 64, Lengths(16, 512), Lengths(16, 256), cap=64) if load else []
    runs, facts = asyncio.run(_run(given, encode, works, repeats))
    return Report(
        benchmark="start",
        title="start: from a process to a token",
        work={"prompt_tokens": 16, "load": f"W4, {CLIENTS} clients" if load else "none"},
        warm_up="one start, so that all files are in the page cache",
        engine=facts,
        runs=runs,
    )


async def _run(
    given: Mapping[str, Any], encode: Encode, works: Sequence[Work], repeats: int
) -> tuple[list[dict[str, float]], dict[str, str]]:
    runs = []
    facts: dict[str, str] = {}
    for number in range(repeats + 1):
        say(f"start {number} of {repeats}" if number else "a first start, not counted")
        figures, facts = await _start(given, encode, works if number else [])
        if number:
            runs.append(figures)
    return runs, facts


async def _start(
    given: Mapping[str, Any], encode: Encode, works: Sequence[Work]
) -> tuple[dict[str, float], dict[str, str]]:
    first = Work(text(encode, 16, seed=5), 4)  # so many that text comes, whatever the first token is
    port = servers.free_port()
    async with servers.running(servers.quire_command(given, port), port) as process:
        server = Server(process.url, await serve.first_model(process.url), {})
        answer = await client.complete(server, first)
        figures = {
            "ready_s": process.ready_s,
            "first_token_s": answer.stamps[0] - process.started_s,
            "pss_bytes": float(await asyncio.to_thread(processes.pss_bytes, process.pid)),
            **stages((await client.get(process.url, "/metrics"))[1].decode(errors="replace")),
        }
        if works:
            [loaded] = await serve.load(server, encode, works, CLIENTS, 1, pid=process.pid)
            figures[LOADED.name] = loaded["pss_bytes"]
        return figures, await serve.facts_of(server)


def stages(page: str) -> dict[str, float]:
    """Seconds of each stage of the start, from a page of metrics."""
    found = re.findall(r'^\w*startup_seconds\{[^}]*stage="(\w+)"[^}]*\} (\S+)$', page, re.MULTILINE)
    return {STAGE + stage: float(seconds) for stage, seconds in found}
