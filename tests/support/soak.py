"""`make soak`: a mixed load on the real server for half an hour, and whether anything grows that should not.

Rounds of load with a rest after each. At rest, samples are taken of memory, threads, files and KV blocks of the server and of the engine;
they must be flat (`drift`), no answer may be wrong, and each kind of request must have had a right one. Ends with status 1 where that does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import httpx

from drift import MIN_SAMPLES, Bound, drift, table
from embedded_server import embedded_server
from soak_load import Load, Tally
from soak_load import table as outcomes

ROUND_S = 15.0
WARM_UP_SHARE = 0.25
"""Of the run: caches, pools, kept grammars and the allocator's arenas fill in it."""
REST_S = 30.0
SERVER = (
    "--max-model-len=512", "--kv-cache-memory=24Mi", "--max-num-seqs=16", "--max-queue-size=24", "--dtype=float32",
    "--max-grammars=4", "--swap-space=16Mi", "--client-timeout=10",
)  # fmt: skip
"""Small, so that the queue, the blocks and the grammars are full all the time."""
MEMORY = Bound(share=0.03, amount=8)
COUNT = Bound(amount=2)
THREADS = Bound(amount=min(32, (os.cpu_count() or 1) + 4))
"""Those of asyncio's executor, which are made one by one when bodies come that are read beside the loop: in a short run not all in its warm-up."""
NONE = Bound(most=0)
BOUNDS = {
    ("server", "memory", "MiB"): MEMORY,
    ("server", "threads", "1"): THREADS,
    ("server", "files", "1"): COUNT,
    ("engine", "memory", "MiB"): MEMORY,
    ("engine", "threads", "1"): COUNT,
    ("engine", "files", "1"): COUNT,
    ("engine", "processes", "1"): COUNT,
    ("requests", "in flight at rest", "1"): NONE,
    ("blocks", "in use at rest", "%"): NONE,
    ("blocks", "faults of bookkeeping", "1"): NONE,
}
ENOUGH = ("server", "memory", "MiB")
"""What is looked at to see whether there are samples enough."""

Sample = dict[tuple[str, str, str], float]


def children(pid: int) -> list[int]:
    """Of all its threads."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def of_process(name: str, pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()

    def number(field: str) -> int:
        return int(re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)[1])  # type: ignore[index]

    return {
        (name, "memory", "MiB"): number("VmRSS") / 1024,
        (name, "threads", "1"): number("Threads"),
        (name, "files", "1"): len(os.listdir(f"/proc/{pid}/fd")),
    }


def shown(page: str, metric: str) -> float:
    """A number of the metrics page, of its only series. One that is not there is no zero: raises LookupError."""
    if (found := re.search(rf"^{metric}\{{.*\}} (\S+)$", page, re.MULTILINE)) is None:
        raise LookupError(f"/metrics has no {metric}")
    return float(found[1])


async def at_rest(http: httpx.AsyncClient, pid: int) -> Sample:
    """What is left when nothing is asked any more. Clients that left are gone within a step."""
    deadline_s = time.monotonic() + REST_S
    files = -1
    while True:
        load = (await http.get("/load")).json()
        page = (await http.get("/metrics")).text
        usage = shown(page, "quire_gpu_cache_usage")
        before, files = files, len(os.listdir(f"/proc/{pid}/fd"))  # connections of clients close meanwhile
        idle = load["server_load"] == load["running"] == usage == 0 and files == before
        if idle or time.monotonic() > deadline_s:
            break
    (engine,) = children(pid)
    return {
        **of_process("server", pid),
        **of_process("engine", engine),
        ("engine", "processes", "1"): len(children(engine)),
        ("requests", "in flight at rest", "1"): load["server_load"] + load["running"],
        ("blocks", "in use at rest", "%"): 100 * usage,
        ("blocks", "faults of bookkeeping", "1"): shown(page, "quire_kv_cache_faults_total"),
    }


async def soak(minutes: float, workers: int, seed: int) -> int:
    """The exit status."""
    samples: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    tally = Tally()
    async with embedded_server(*SERVER) as server, httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        load = Load(server.url, tally, workers=workers, seed=seed)
        began_s = time.monotonic()
        # on a slow machine what is begun in a round takes longer than the round
        while time.monotonic() - began_s < minutes * 60 or len(samples[ENOUGH]) < MIN_SAMPLES:
            await load.run(ROUND_S)
            now_s = time.monotonic() - began_s
            sample = await at_rest(http, server.handle.pid)
            if now_s > WARM_UP_SHARE * minutes * 60:
                for key, value in sample.items():
                    samples[key].append((now_s, value))
            memory = f"server {sample['server', 'memory', 'MiB']:.0f} MiB, engine {sample['engine', 'memory', 'MiB']:.0f} MiB"
            print(
                f"[{now_s / 60:5.1f} min] {sum(tally.outcomes.values())} requests, {tally.num_faults} faults; {memory}",
                flush=True,
            )
    drifts = [drift(" ".join(key[:2]), key[2], samples[key], bound) for key, bound in BOUNDS.items()]
    print(
        f"\n{outcomes(tally)}\n\nAt rest, from {WARM_UP_SHARE:.0%} of the run on ({len(next(iter(samples.values())))} samples):\n{table(drifts)}"
    )
    unanswered = tally.unanswered()
    if unanswered:
        print(f"never answered as they should be: {', '.join(unanswered)}")
    return 0 if not tally.num_faults and not unanswered and all(one.flat for one in drifts) else 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--workers", type=int, default=48, help="clients at once")
    parser.add_argument("--seed", type=int, default=0, help="of what they send")
    given = parser.parse_args(arguments)
    least = MIN_SAMPLES * ROUND_S / 60 / (1 - WARM_UP_SHARE)
    if given.minutes < least:
        parser.error(f"--minutes must be at least {least:.1f}: fewer samples say nothing")
    return asyncio.run(soak(given.minutes, given.workers, given.seed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
