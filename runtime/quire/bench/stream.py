"""`quire bench stream`: what the server's process does for each chunk of a stream, over an engine that computes nothing.

The server is the real one, in a process of its own, with the engine's process replaced by `echo_engine`; clients are those of W4. Times
are CPU seconds of the server's process, so that what clients and engine take does not count. The engine's pace must be one that the server
holds: chunks that come too fast are joined, and `joined` says how many were.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from quire.api.progress import progress
from quire.bench import client, processes, servers
from quire.bench.client import Answer, Server
from quire.bench.processes import Noise
from quire.bench.report import Figure, Report, say
from quire.bench.serve import encoder, facts_of, first_model
from quire.bench.stats import gaps, percentile
from quire.bench.workloads import Encode, Span, Work, mixed, warm_up
from quire.config import EngineConfig
from quire.errors import RequestError

PROMPT_TOKENS = Span(64, 64)
FIGURES = (
    Figure("chunks_per_cpu_s", "chunks per CPU second of the server", digits=0),
    Figure("chunks_per_s", "chunks per second, at the engine's pace", digits=0),
    Figure("joined", "tokens that did not come alone, %", 100),
    Figure("itl_p50_s", "between chunks, p50, ms", 1e3),
    Figure("itl_p99_s", "between chunks, p99, ms", 1e3),
    Figure("server_cpu_s", "CPU seconds of the server", digits=2),
    Figure("wall_s", "seconds for all", digits=2),
)


def run(
    config: EngineConfig,
    given: Mapping[str, Any],
    config_file: str | None,
    *,
    requests: int,
    clients: int,
    output_tokens: int,
    interval_s: float,
    repeats: int,
) -> Report:
    """Measure; raises QuireError. given: flags for `quire serve` as typed."""
    encode = encoder(config)
    works = mixed(encode, requests, PROMPT_TOKENS, Span(output_tokens, output_tokens))
    runs, facts = asyncio.run(_run(given, config_file, encode, works, clients, interval_s, repeats))
    return Report(
        benchmark="stream",
        title=f"stream: {clients} streams, a token every {interval_s * 1e3:g} ms from an engine that computes nothing",
        work={"requests": requests, "clients": clients, "output_tokens": output_tokens},
        warm_up="4 short requests",
        engine=facts,
        runs=runs,
    )


async def _run(
    given: Mapping[str, Any],
    config_file: str | None,
    encode: Encode,
    works: Sequence[Work],
    clients: int,
    interval_s: float,
    repeats: int,
) -> tuple[list[dict[str, float]], dict[str, str]]:
    port = servers.free_port()
    flags = {**given, "host": servers.HOST, "port": str(port), "log_level": "warning"}
    command = [sys.executable, "-m", "quire.bench.echo_server", str(interval_s), json.dumps([flags, config_file])]
    say("starting the server")
    async with servers.running(command, port) as process:
        server = Server(process.url, await first_model(process.url), {})
        await client.drive(server, warm_up(encode, 4), 4)
        runs = []
        for number in range(repeats):
            with progress(len(works), label=f"run {number + 1} of {repeats}") as tick, Noise() as noise:
                before_s = processes.cpu_s(process.pid)
                answers, wall_s = await client.drive(server, works, clients, tick=tick)
                cpu_s = processes.cpu_s(process.pid) - before_s
            watched = {"foreign": noise.foreign, "stolen": noise.stolen}
            runs.append(summary(works, answers, wall_s, cpu_s) | watched)
        return runs, await facts_of(server)


def summary(works: Sequence[Work], answers: Sequence[Answer], wall_s: float, cpu_s: float) -> dict[str, float]:
    """Figures of one run; raises RequestError where an answer has not the tokens that were asked for, or the server's CPU time is too
    short for the system's clock. cpu_s: of the server."""
    if cpu_s <= 0:
        raise RequestError(
            "no CPU time of the server was measured: ask for more (--requests, --output-tokens); it is read from /proc"
        )
    for index, (work, answer) in enumerate(zip(works, answers, strict=True)):
        if answer.num_tokens != work.num_tokens:
            raise RequestError(f"answer {index} has {answer.num_tokens} tokens instead of {work.num_tokens}")
    chunks, tokens = sum(len(answer.stamps) for answer in answers), sum(answer.num_tokens for answer in answers)
    between = [gap for answer in answers for gap in gaps(answer.stamps)]
    return {
        "chunks_per_cpu_s": chunks / cpu_s,
        "chunks_per_s": chunks / wall_s,
        "joined": 1 - chunks / tokens,
        "itl_p50_s": percentile(between, 0.50),
        "itl_p99_s": percentile(between, 0.99),
        "server_cpu_s": cpu_s,
        "wall_s": wall_s,
    }
