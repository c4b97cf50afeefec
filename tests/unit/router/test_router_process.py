"""`python -m quire_router` as the pod runs it: start, SIGTERM, and a start that is refused."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from router_kit import DEADLINE_S, FakeKube, llmdeployment, serving_api

ROOT = Path(__file__).resolve().parents[3]


async def start(environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("QUIRE_")}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "quire_router",
        cwd="/", stderr=asyncio.subprocess.PIPE,
        env={**kept, "PYTHONPATH": str(ROOT / "operator"), "PYTHONSAFEPATH": "1", **environment},
    )  # fmt: skip


def free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(sock.getsockname()[1]) for sock in sockets]
    finally:
        for sock in sockets:
            sock.close()


def kubeconfig(path: Path, server: str) -> Path:
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": server}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return path


async def test_it_serves_until_sigterm_and_exits_with_zero(tmp_path: Path) -> None:
    kube = FakeKube()
    await kube.put("llmdeployments", llmdeployment("m"))
    port, metrics_port = free_ports(2)
    async with serving_api(kube) as url:
        process = await start(
            {
                "KUBECONFIG": str(kubeconfig(tmp_path / "config", url)),
                "QUIRE_ROUTER_HOST": "127.0.0.1",
                "QUIRE_ROUTER_PORT": port,
                "QUIRE_ROUTER_METRICS_PORT": metrics_port,
                "QUIRE_ROUTER_PRE_DRAIN_S": "0",
                "QUIRE_ROUTER_LOG_FORMAT": "json",
            }
        )
        assert process.stderr is not None
        records = []
        async with asyncio.timeout(DEADLINE_S):
            while sum(record["message"].startswith("listed") for record in records) < 2:
                records.append(json.loads(await process.stderr.readline()))
            async with aiohttp.ClientSession() as client:
                async with client.get(f"http://127.0.0.1:{port}/v1/models") as response:
                    assert [item["id"] for item in (await response.json())["data"]] == ["m"]
                async with client.get(f"http://127.0.0.1:{metrics_port}/metrics") as response:
                    assert (
                        'quire_router_endpoints{deployment="m",namespace="demo",state="ready"} 0.0'
                        in await response.text()
                    )
            process.send_signal(signal.SIGTERM)
            rest = (await process.stderr.read()).decode()
            assert await process.wait() == 0, rest
        assert "draining" in rest
        assert "Traceback" not in rest


async def test_a_start_that_cannot_work_ends_with_one_sentence(tmp_path: Path) -> None:
    good = {"KUBECONFIG": str(kubeconfig(tmp_path / "config", "http://127.0.0.1:9"))}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = str(taken.getsockname()[1])
        for environment, says in (
            ({"QUIRE_ROUTER_PORT": "x"}, "QUIRE_ROUTER_PORT is 'x'"),
            ({"KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}, "set KUBECONFIG"),
            (
                {**good, "QUIRE_ROUTER_METRICS_PORT": "0", "QUIRE_ROUTER_HOST": "127.0.0.1", "QUIRE_ROUTER_PORT": busy},
                busy,
            ),
        ):
            process = await start(environment)
            async with asyncio.timeout(DEADLINE_S):
                _, stderr = await process.communicate()
            last = stderr.decode().strip().splitlines()[-1]
            assert process.returncode == 1, stderr.decode()
            assert last.startswith("quire_router: error: ")
            assert says in last
            assert "Traceback" not in stderr.decode()
