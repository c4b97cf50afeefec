"""`quire bench serve` (W4): clients that stream answers from a server, one it starts itself or one that runs already."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.api.progress import progress
from quire.api.requests import load_text
from quire.bench import client, processes, servers
from quire.bench.client import Answer, Server
from quire.bench.processes import Noise
from quire.bench.report import Figure, Report, say
from quire.bench.stats import gaps, percentile
from quire.bench.workloads import Encode, Span, Work, mixed, warm_up
from quire.config import EngineConfig
from quire.errors import EngineDeadError, RequestError

FIGURES = (
    Figure("requests_per_s", "requests/s", digits=2),
    Figure("generated_tokens_per_s", "generated tokens/s"),
    Figure("stream_tokens_per_s", "tokens/s of one stream, p50"),
    Figure("ttft_p50_s", "time to first token, p50, ms", 1e3, 0),
    Figure("ttft_p95_s", "time to first token, p95, ms", 1e3, 0),
    Figure("itl_p50_s", "between tokens, p50, ms", 1e3),
    Figure("itl_p95_s", "between tokens, p95, ms", 1e3),
    Figure("itl_p99_s", "between tokens, p99, ms", 1e3),
    Figure("wall_s", "seconds for all", digits=2),
)
OWN_FIGURES = (
    Figure("ready_s", "seconds from process start to ready", digits=2),
    Figure("pss_bytes", "memory under this load (PSS of all processes), MB", 1e-6, 0),
    Figure("server_cpu_share", "of the CPU time, the server's process without the engine's, %", 100),
)


def figures_of(runs: Sequence[Mapping[str, float]]) -> tuple[Figure, ...]:
    """Those that were measured: memory, start and CPU time only of a server of our own."""
    return FIGURES + tuple(figure for figure in OWN_FIGURES if figure.name in runs[0])


def run(
    config: EngineConfig,
    given: Mapping[str, Any],
    *,
    url: str | None,
    requests: int,
    clients: int,
    prompt_tokens: Span,
    output_tokens: Span,
    output_cap: int,
    repeats: int,
) -> Report:
    """Measure; raises QuireError. given: flags for `quire serve` as typed. url: of a running server, whose tokenizer config names."""
    encode = encoder(config)
    works = mixed(encode, requests, prompt_tokens, output_tokens, cap=output_cap)
    runs, facts = asyncio.run(_run(given, encode, works, url, clients, repeats))
    return Report(
        benchmark="serve",
        title=f"serve: {requests} requests, {clients} streaming clients",
        work={
            "requests": requests,
            "clients": clients,
            "prompt_tokens": f"{prompt_tokens} ({sum(len(work.prompt) for work in works)} in all)",
            "output_tokens": f"{output_tokens}, at most {output_cap} ({sum(work.num_tokens for work in works)} in all)",
        },
        warm_up="4 short requests",
        engine=facts,
        runs=runs,
    )


def encoder(config: EngineConfig) -> Encode:
    """Text to token ids of the configured model, nothing added."""
    tokenizer = load_text(config, say=say)
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


async def _run(
    given: Mapping[str, Any], encode: Encode, works: Sequence[Work], url: str | None, clients: int, repeats: int
) -> tuple[list[dict[str, float]], dict[str, str]]:
    if url is not None:
        server = Server(url.rstrip("/"), await first_model(url), {})
        return await load(server, encode, works, clients, repeats), {"url": url, **await facts_of(server)}
    port = servers.free_port()
    say("starting quire serve")
    async with servers.running(servers.quire_command(given, port), port) as process:
        server = Server(process.url, await first_model(process.url), {})
        runs = await load(server, encode, works, clients, repeats, pid=process.pid)
        return [{**one, "ready_s": process.ready_s} for one in runs], await facts_of(server)


async def load(
    server: Server, encode: Encode, works: Sequence[Work], clients: int, repeats: int, *, pid: int | None = None
) -> list[dict[str, float]]:
    """Figures of each run. pid: of the server, whose memory is then watched."""
    await client.drive(server, warm_up(encode, 4), 4)
    runs = []
    for number in range(repeats):
        with progress(len(works), label=f"run {number + 1} of {repeats}") as tick, Noise() as noise:
            if pid is None:
                answers, wall_s = await client.drive(server, works, clients, tick=tick)
                own: dict[str, float] = {}
            else:
                async with servers.watched(pid) as samples:
                    before = _cpu(pid)
                    answers, wall_s = await client.drive(server, works, clients, tick=tick)
                    own = _between(before, _cpu(pid))
                own["pss_bytes"] = max(samples)
        if pid is not None:
            own |= {"foreign": noise.foreign, "stolen": noise.stolen}
        runs.append(summary(works, answers, wall_s) | own)
    return runs


def _cpu(pid: int) -> tuple[float, float]:
    """CPU seconds so far: of the process, and of those below it (the engine's, and its workers')."""
    return processes.cpu_s(pid), sum(processes.cpu_s(one) for one in processes.tree(pid) if one != pid)


def _between(before: tuple[float, float], after: tuple[float, float]) -> dict[str, float]:
    server_s, engine_s = after[0] - before[0], after[1] - before[1]
    if server_s + engine_s <= 0:
        return {}
    return {"server_cpu_s": server_s, "engine_cpu_s": engine_s, "server_cpu_share": server_s / (server_s + engine_s)}


def summary(works: Sequence[Work], answers: Sequence[Answer], wall_s: float) -> dict[str, float]:
    """Figures of one run; raises RequestError where an answer has not the tokens that were asked for."""
    for index, (work, answer) in enumerate(zip(works, answers, strict=True)):
        if answer.num_tokens != work.num_tokens:
            raise RequestError(f"answer {index} has {answer.num_tokens} tokens instead of {work.num_tokens}")
    ttft = [answer.ttft_s for answer in answers]
    between = [gap for answer in answers for gap in gaps(answer.stamps)]
    rates = [
        (one.num_tokens - 1) / (one.stamps[-1] - one.stamps[0]) for one in answers if one.stamps[-1] > one.stamps[0]
    ]
    generated = sum(answer.num_tokens for answer in answers)
    return {
        "requests_per_s": len(answers) / wall_s,
        "generated_tokens_per_s": generated / wall_s,
        "total_tokens_per_s": (generated + sum(len(work.prompt) for work in works)) / wall_s,
        "stream_tokens_per_s": percentile(rates, 0.50),
        "ttft_p50_s": percentile(ttft, 0.50),
        "ttft_p95_s": percentile(ttft, 0.95),
        "itl_p50_s": percentile(between, 0.50),
        "itl_p95_s": percentile(between, 0.95),
        "itl_p99_s": percentile(between, 0.99),
        "wall_s": wall_s,
    }


async def first_model(url: str) -> str:
    """The name of the first model that a server has. Raises EngineDeadError where none answers."""
    try:
        status, body = await client.get(url, "/v1/models")
        name: str = json.loads(body)["data"][0]["id"]
    except (OSError, ValueError, LookupError, TypeError) as exc:
        raise EngineDeadError(f"no OpenAI server answers at {url}/v1/models: {exc or type(exc).__name__}") from exc
    if status != 200:
        raise EngineDeadError(f"{url}/v1/models answered with status {status}")
    return name


async def facts_of(server: Server) -> dict[str, str]:
    """The labels of `engine_info`; empty for a server that has none."""
    page = (await client.get(server.url, "/metrics"))[1].decode(errors="replace")
    found = re.search(r"^\w*engine_info\{(.*)\} 1(\.0)?$", page, re.MULTILINE)
    return (
        {"model": server.model, **dict(re.findall(r'(\w+)="([^"]*)"', found[1]))} if found else {"model": server.model}
    )
