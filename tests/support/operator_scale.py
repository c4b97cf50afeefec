"""`make scale`: the operator's process with many LLMDeployments on a real API server: how long until all are acted on, at what cost.

The objects are there before the operator starts, in ten namespaces. Measured are the seconds from the start of its process until every one
has its workload, its Service and a status of its generation; CPU time and the peak of its memory until then; CPU time and writes at rest; and
how long one change takes. There are no controllers and no kubelets: nothing comes of the workloads. Ends with status 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from cluster.wait import until
from operator_process import free_port
from quire_operator.crd.kinds import KINDS
from quire_operator.crd.manifest import custom_resource_definition
from real_api import RealApi, real_api

LIMIT_S, LIMIT_MIB, LIMIT_CORES, LIMIT_CHANGE_S = 60.0, 300.0, 1.0, 1.0
"""For 500 LLMDeployments."""
NUM_NAMESPACES = 10
NUM_CHANGES = 20
DEADLINE_S = 600.0
ALL = "/apis/quire.dev/v1alpha1/llmdeployments"
SETTINGS = {"METRICS_API": "false", "HOST": "127.0.0.1", "ROUTER_URL": "http://127.0.0.1:1", "LOG_LEVEL": "warning"}


@dataclass(frozen=True)
class Cost:
    """Of a process so far."""

    cpu_s: float
    peak_mib: float

    @classmethod
    def of(cls, pid: int) -> Cost:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        peak = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        assert peak is not None
        return cls((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(peak[1]) / 1024)


def api_server() -> int:
    """The process that this one started."""
    task = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    [found] = [int(pid) for pid in task if Path(f"/proc/{pid}/comm").read_text().strip() == "kube-apiserver"]
    return found


def body(number: int) -> dict[str, Any]:
    return {
        "apiVersion": "quire.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": f"model-{number}"},
        "spec": {"model": {"source": "file:///models/m.gguf"}, "replicas": 2, "engine": {"maxNumSeqs": 8}},
    }


def acted_on(api: RealApi) -> int:
    """LLMDeployments whose status is of their generation, once each has its workload and its Service."""
    items = (api.get(f"{ALL}?limit=5000") or {"items": []})["items"]
    return sum((item.get("status") or {}).get("observedGeneration") == item["metadata"]["generation"] for item in items)


def count(api: RealApi, path: str) -> int:
    listed = api.get(f"{path}?labelSelector=quire.dev/deployment&limit=5000")
    return len(listed["items"]) if listed is not None else 0


def writes(metrics: str, kind: str = ".*") -> float:
    """So far, as the operator counts them; 0 while it does not answer."""
    try:
        page = httpx.get(metrics, trust_env=False).text
    except httpx.HTTPError:
        return 0.0
    found = re.findall(rf'^quire_operator_writes_total\{{kind="{kind}"\}} (\S+)$', page, re.MULTILINE)
    return sum(map(float, found))


def change_s(api: RealApi, namespace: str, name: str, replicas: int) -> float:
    """From the edit's answer until the workload has the new size."""
    api.patch(
        f"/apis/quire.dev/v1alpha1/namespaces/{namespace}/llmdeployments/{name}", {"spec": {"replicas": replicas}}
    )
    began_s = time.monotonic()
    where = f"/apis/apps/v1/namespaces/{namespace}/deployments?labelSelector=quire.dev/deployment%3D{name}"

    def seen() -> str | None:
        items = (api.get(where) or {"items": []})["items"]
        return None if [item["spec"]["replicas"] for item in items] == [replicas] else "not yet"

    until("the change is acted on", seen, deadline_s=60, interval_s=0.01)
    return time.monotonic() - began_s


def start(api: RealApi, folder: Path, ports: tuple[int, int]) -> subprocess.Popen[bytes]:
    config = folder / "kubeconfig"
    config.write_text(json.dumps(api.kubeconfig()))
    settings = {**SETTINGS, "METRICS_PORT": str(ports[0]), "HEALTH_PORT": str(ports[1])}
    environment = {
        **os.environ,
        "KUBECONFIG": str(config),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **{f"QUIRE_OPERATOR_{name}": value for name, value in settings.items()},
    }
    with (folder / "operator.log").open("wb") as out:
        command = [sys.executable, "-m", "quire_operator"]
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )


async def fill(api: RealApi, namespaces: Sequence[str], total: int) -> None:
    """Several at a time: it is not what is measured."""
    slots = asyncio.Semaphore(16)
    config = api.kubeconfig()
    verify = ssl.create_default_context(cafile=config["clusters"][0]["cluster"]["certificate-authority"])
    headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
    async with httpx.AsyncClient(
        base_url=api.url, headers=headers, verify=verify, trust_env=False, timeout=60
    ) as client:

        async def one(number: int) -> None:
            where = f"/apis/quire.dev/v1alpha1/namespaces/{namespaces[number % len(namespaces)]}/llmdeployments"
            async with slots:
                (await client.post(where, json=body(number))).raise_for_status()

        await asyncio.gather(*(one(number) for number in range(total)))


def measure(total: int, rest_s: float, folder: Path) -> int:
    """The exit status."""
    with real_api(folder) as api:
        for kind in KINDS:
            api.define(custom_resource_definition(kind))
        namespaces = [api.namespace() for _ in range(NUM_NAMESPACES)]
        asyncio.run(fill(api, namespaces, total))
        ports = (free_port(), free_port())
        server_s = Cost.of(api_server()).cpu_s
        began_s = time.monotonic()
        process = start(api, folder, ports)
        try:
            metrics = f"http://127.0.0.1:{ports[0]}/metrics"

            def missing() -> str | None:
                # Lists of everything are work for the API server: not before there is something to see.
                told = writes(metrics, "Status")
                if told < total:
                    return f"{told:.0f} statuses of {total}"
                return None if (done := acted_on(api)) == total else f"{done} of {total}"

            until("all are acted on", missing, deadline_s=DEADLINE_S, interval_s=0.5, log=folder / "operator.log")
            took_s = time.monotonic() - began_s
            cost, server_s = Cost.of(process.pid), Cost.of(api_server()).cpu_s - server_s
            made = (count(api, "/apis/apps/v1/deployments"), count(api, "/api/v1/services"))
            assert made == (total, total), made
            time.sleep(5)  # what the first looks have set going
            before, written, rest_began_s = Cost.of(process.pid), writes(metrics), time.monotonic()
            time.sleep(rest_s)
            at_rest = (Cost.of(process.pid).cpu_s - before.cpu_s) / (time.monotonic() - rest_began_s)
            at_rest_writes = writes(metrics) - written
            changes = [
                change_s(api, namespaces[number % NUM_NAMESPACES], f"model-{number}", 3)
                for number in range(NUM_CHANGES)
            ]
            peak = Cost.of(process.pid).peak_mib
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(120)
    rows = [
        (f"{total} from cold", f"{took_s:.1f} s", f"{LIMIT_S * total / 500:.0f} s", took_s <= LIMIT_S * total / 500),
        (
            "CPU meanwhile",
            f"{cost.cpu_s / took_s:.2f} cores ({cost.cpu_s:.1f} s)",
            f"{LIMIT_CORES:g}",
            cost.cpu_s / took_s <= LIMIT_CORES,
        ),
        ("CPU of the API server", f"{server_s / took_s:.2f} cores ({server_s:.1f} s)", "", True),
        ("memory, peak", f"{peak:.0f} MiB", f"{LIMIT_MIB:.0f} MiB", peak <= LIMIT_MIB),
        ("CPU at rest", f"{at_rest:.3f} cores", "", True),
        ("writes at rest", f"{at_rest_writes:.0f} in {rest_s:.0f} s", "0", at_rest_writes == 0),
        ("one change, median", f"{statistics.median(changes):.2f} s", "", True),
        (
            "one change, slowest",
            f"{max(changes):.2f} s of {len(changes)}",
            f"{LIMIT_CHANGE_S:g} s",
            max(changes) <= LIMIT_CHANGE_S,
        ),
    ]
    print("| what | measured | limit |\n|---|---|---|")
    for what, value, limit, good in rows:
        print(f"| {what} | {value} | {limit}{'' if good else ', passed'} |")
    return 0 if all(good for *_, good in rows) else 1


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make scale", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="LLMDeployments")
    parser.add_argument("--rest", type=float, default=65, help="seconds at rest; a resync is every 60")
    given = parser.parse_args(arguments)
    if given.count < NUM_CHANGES:
        parser.error(f"--count must be at least {NUM_CHANGES}: so many of them are changed afterwards")
    with tempfile.TemporaryDirectory() as folder:
        return measure(given.count, given.rest, Path(folder))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
