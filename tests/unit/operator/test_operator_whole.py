"""The operator as a process: every kind is acted on, by watches and by lists, and a cluster at rest gets no write."""

from __future__ import annotations

import http.server
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from operator_process import GROUP, OperatorProcess, operator_process
from prometheus_kit import OF_TROUBLE, operator_queries, prometheus
from quire_operator import labels
from real_api import RealApi
from threaded_server import served

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

LOCAL = {"source": "file:///models/smollm2.gguf"}


@pytest.fixture
def bench(api: RealApi, tmp_path: Path) -> Iterator[OperatorProcess]:
    with operator_process(api, tmp_path) as made:
        yield made


def test_every_kind_is_acted_on_and_a_cluster_at_rest_gets_no_write(bench: OperatorProcess, tmp_path: Path) -> None:
    bench.create("LLMDeployment", "llmdeployments", "smol", {"model": LOCAL})
    bench.create("ModelCache", "modelcaches", "llama", {"model": {"source": "hf://org/name"}, "size": "1Gi"})
    bench.create("LLMAdapter", "llmadapters", "support", {"deployment": "smol", "source": "hf://org/lora"})

    def told(plural: str, name: str, field: str) -> Any:
        return (bench.api.get(bench.path(GROUP, plural, name)) or {}).get("status", {}).get(field)

    bench.until("the workload", lambda: bench.items("/apis/apps/v1", "deployments"))
    bench.until("the Job", lambda: told("modelcaches", "llama", "phase") == "Filling")
    bench.until("the adapter's status", lambda: told("llmadapters", "support", "summary") == "0/0")
    assert {item["metadata"]["name"] for item in bench.items("/api/v1", "serviceaccounts")} >= {"smol"}

    before: dict[str, str] = {}

    def rests() -> bool:
        same = before == (now := bench.versions())
        before.clear()
        before.update(now)
        return same

    bench.until("rest", rests)
    looks = bench.looks()
    bench.until("two more looks at all three", lambda: bench.looks() >= looks + 6)
    assert bench.versions() == before

    bench.api.patch(bench.path(GROUP, "llmdeployments", "smol"), {"spec": {"replicas": 3}})
    bench.until(
        "three replicas",
        lambda: [item["spec"]["replicas"] for item in bench.items("/apis/apps/v1", "deployments")] == [3],
    )

    # What the dashboard asks of it has data, in a real Prometheus.
    (folder := tmp_path / "prometheus").mkdir()
    with prometheus(folder, [bench.metrics.split("/")[2]]) as live:
        asked = [query for query in operator_queries() if not any(name in query for name in OF_TROUBLE)]
        assert not [query for query in asked if not live.has(query, deadline_s=30)]


class Engine(http.server.BaseHTTPRequestHandler):
    """Of the one pod: what it has loaded, and how often it was told to."""

    loaded: ClassVar[dict[str, str]] = {}
    loads: ClassVar[int] = 0

    def do_GET(self) -> None:
        data = [{"id": name, "root": path, "parent": "smol"} for name, path in self.loaded.items()]
        self.answer(200 if self.path == "/v1/models" else 404, {"data": data})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).loads += 1
        self.loaded[body["lora_name"]] = body["lora_path"]
        self.answer(200, {})

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def test_an_adapter_that_an_engine_lost_comes_back_without_any_event(bench: OperatorProcess) -> None:
    """As with what happened while nobody led: only the look at everything now and then finds it."""
    host = "127.0.0.77"
    adapters = [{"name": "mine", "source": "file:///mine"}]
    with served(Engine, host=host, port=labels.ENGINE_PORT):
        bench.create("LLMDeployment", "llmdeployments", "smol", {"model": LOCAL, "adapters": adapters})
        metadata = {"name": "p", "labels": labels.stable_selector("smol")}
        pods, spec = bench.path("/api/v1", "pods"), {"containers": [{"name": "engine", "image": "x"}]}
        assert bench.api.create(pods, {"metadata": metadata, "spec": spec}, dry_run=False).status_code == 201
        ready = {"phase": "Running", "podIP": host, "conditions": [{"type": "Ready", "status": "True"}]}
        bench.api.patch(f"{pods}/p/status", {"status": ready})
        own = bench.path(GROUP, "llmdeployments", "smol")

        def told() -> bool:
            status = (bench.api.get(own) or {}).get("status", {})
            return [each["loaded"] for each in status.get("adapters", ())] == [1]

        for times in range(1, 5):  # what is told of the first times brings events, which do
            bench.until("it is loaded", lambda times=times: Engine.loads == times)
            bench.until("and told", told)
            Engine.loaded.clear()


def test_an_adapter_is_seen_by_its_own_watch(bench: OperatorProcess) -> None:
    """The second LLMAdapter comes when the operator is at rest; what is told about it cannot come from the start's list."""
    for name in ("first", "second"):
        bench.create("LLMAdapter", "llmadapters", name, {"deployment": "none", "source": "hf://org/lora"})

        def told(name: str = name) -> bool:
            found = bench.api.get(bench.path(GROUP, "llmadapters", name)) or {}
            return bool(found.get("status", {}).get("conditions"))

        bench.until(f"the status of {name}", told)
    assert "Traceback" not in bench.log.read_text()
