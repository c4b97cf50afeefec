"""Run works on lanes in turn: each round, every lane once for each work, so that what slows the machine slows all alike."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peers.home import PeerError
from peers.lanes import Lane, Ready
from quire.bench import client, processes, serve, servers
from quire.bench.client import Server
from quire.bench.processes import Noise
from quire.bench.workloads import Encode, Span, Work, mixed, shared_prefix, single, text
from quire.errors import QuireError

Figures = dict[str, float]
WORKS = ("w2-inside", "w2", "w1", "w3", "w4", "start")
QUIET_BUSY = 0.10
QUIET_LIMIT_S = 60.0
START_LIMIT_S = 600.0


@dataclass
class Results:
    """figures: by work, then lane, one entry for each round. failures: lane, or `lane, work`, to the reason. versions: by lane."""

    figures: dict[str, dict[str, list[Figures]]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def forget(self, work: str) -> None:
        """All of a work, as it will be run again."""
        self.figures.pop(work, None)
        self.failures = {name: reason for name, reason in self.failures.items() if not name.endswith(f", {work}")}


def race(
    lanes: Sequence[Lane],
    works: Sequence[str],
    model: str,
    rounds: int,
    encode: Encode,
    *,
    kept: Callable[[Results], None],
    quiet_limit_s: float = QUIET_LIMIT_S,
    earlier: Results | None = None,
) -> Results:
    """kept: called after each measurement, so that nothing is lost where the rest is broken off. quiet_limit_s: how long to wait at
    most until other processes are quiet, before each measurement. earlier: results that these are added to; a work that is run
    again takes the place of its earlier figures, of all lanes."""
    results, ready = earlier or Results(), {}
    for work in works:
        results.forget(work)
    for lane in lanes:
        try:
            ready[lane.name] = lane.prepare(model)
            results.versions[lane.name] = ready[lane.name].version
            results.failures.pop(lane.name, None)
        except PeerError as exc:
            results.failures[lane.name] = str(exc)
            _say(f"{lane.name} is left out: {exc}")
    for work in works:
        for number in range(rounds):
            for name, one in ready.items():
                if f"{name}, {work}" in results.failures or (work == "w2-inside" and one.inside is None):
                    continue
                wait_until_quiet(quiet_limit_s)
                _say(f"{work}, round {number + 1} of {rounds}: {name}")
                try:
                    figures = _measure(one, work, number, encode)
                except (PeerError, QuireError, ExceptionGroup) as exc:
                    cause = exc.exceptions[0] if isinstance(exc, ExceptionGroup) else exc
                    results.failures[f"{name}, {work}"] = " ".join(str(cause).split())
                    _say(f"    failed: {cause}")
                    continue
                results.figures.setdefault(work, {}).setdefault(name, []).append(figures)
                kept(results)
    return results


def _measure(lane: Ready, work: str, number: int, encode: Encode) -> Figures:
    if work == "w2-inside":
        assert lane.inside is not None
        with Noise() as noise:
            figures = lane.inside(128, 128)
        return {**figures, "foreign": noise.foreign, "stolen": noise.stolen}
    return asyncio.run(_over_http(lane, work, number, encode))


async def _over_http(lane: Ready, work: str, number: int, encode: Encode) -> Figures:
    port = servers.free_port()
    command = lane.command(work, port)
    async with servers.running(
        command, port, health=lane.health, environment=lane.environment, deadline_s=START_LIMIT_S
    ) as process:
        server = Server(process.url, await serve.first_model(process.url), lane.extra)
        if work == "start":
            answer = await client.complete(server, Work(text(encode, 16, seed=5), 4))
            return {
                "ready_s": process.ready_s,
                "first_token_s": answer.stamps[0] - process.started_s,
                "pss_bytes": float(processes.pss_bytes(process.pid)),
            }
        works, clients = work_of(work, encode, number)
        if work == "w2":
            await client.drive(server, [single(encode, 128, 8, repeat=-1)], 1)
        [figures] = await serve.load(server, encode, works, clients, 1, pid=process.pid)
        if work == "w3":
            again, wall_s = await client.drive(server, works, clients)
            figures = {**figures, "again_wall_s": wall_s, "again_tokens": float(sum(one.num_tokens for one in again))}
        return figures


def work_of(work: str, encode: Encode, number: int) -> tuple[list[Work], int]:
    """Requests and clients of a work over HTTP."""
    if work == "w1":
        return mixed(encode, 64, Span(16, 512), Span(16, 256)), 64
    if work == "w2":
        return [single(encode, 128, 128, repeat=3 * number + index) for index in range(3)], 1
    if work == "w3":
        return shared_prefix(encode, 32, prefix=1024, suffix=32, num_tokens=32), 32
    return mixed(encode, 64, Span(16, 512), Span(16, 256), cap=64), 16


def wait_until_quiet(limit_s: float) -> None:
    """Until all CPUs are nearly idle for a second, or the limit is reached."""
    ends = time.monotonic() + limit_s
    while time.monotonic() < ends:
        before = processes.ticks(1)
        time.sleep(1.0)
        after = processes.ticks(1)
        if before is None or after is None or (after.busy - before.busy) < QUIET_BUSY * (after.total - before.total):
            return


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
