"""One LLMDeployment under the operator's process on a real API server; Deployment controller and kubelets are played."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operator_process import GROUP, OperatorProcess

PODS, WORKLOADS = ("/api/v1", "pods"), ("/apis/apps/v1", "deployments")
READY = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
ONE_STEP = {"strategy": "Canary", "canary": {"steps": [{"weight": 40, "pause": "indefinite"}]}, "drainTimeout": "0s"}


class Stage:
    """One LLMDeployment, and whoever plays its pods."""

    def __init__(self, bench: OperatorProcess) -> None:
        self.bench = bench
        self.own = bench.path(GROUP, "llmdeployments", "smol")
        self.shares_seen: list[dict[str, int]] = []

    def create(self, rollout: dict[str, Any], replicas: int = 2) -> str:
        spec = {"model": {"source": "file:///models/m.gguf"}, "replicas": replicas, "rollout": rollout}
        self.bench.create("LLMDeployment", "llmdeployments", "smol", spec)
        self.until("all ready", lambda: self.reason("Progressing") == "Complete")
        return str(self.status()["currentRevision"])

    def edit(self, **spec: Any) -> None:
        self.bench.api.patch(self.own, {"spec": spec})

    def command(self, value: str) -> None:
        self.bench.api.patch(self.own, {"metadata": {"annotations": {"quire.dev/rollout": value}}})

    def body(self) -> dict[str, Any]:
        return self.bench.api.get(self.own) or {}

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.body().get("status", {})
        return found

    def reason(self, kind: str) -> str:
        return next((item["reason"] for item in self.status().get("conditions", ()) if item["type"] == kind), "")

    def shares(self) -> dict[str, int]:
        return {item["name"]: item["weight"] for item in self.status().get("revisions", ())}

    def sizes(self) -> dict[str, int]:
        items = self.bench.items(*WORKLOADS)
        return {item["metadata"]["labels"]["quire.dev/revision"]: item["spec"]["replicas"] for item in items}

    def uids(self) -> set[str]:
        return {item["metadata"]["uid"] for item in self.bench.items(*PODS)}

    def until(self, what: str, seen: Callable[[], object]) -> None:
        def look() -> object:
            self.play()
            self.shares_seen.append(self.shares())
            return seen()

        self.bench.until(what, look)

    def play(self) -> None:
        """The Deployment controller and the kubelets."""
        api, pods = self.bench.api, self.bench.items(*PODS)
        for workload in self.bench.items(*WORKLOADS):
            name, size = workload["metadata"]["name"], workload["spec"]["replicas"]
            revision = workload["metadata"]["labels"]["quire.dev/revision"]
            mine = [pod for pod in pods if pod["metadata"]["labels"]["quire.dev/revision"] == revision]
            for pod in mine[size:]:
                path = self.bench.path(*PODS, pod["metadata"]["name"])
                api.client.request("DELETE", path, json={"gracePeriodSeconds": 0}).raise_for_status()
            for _ in range(size - len(mine)):
                body = {
                    "metadata": {
                        "generateName": f"{name}-",
                        "labels": workload["spec"]["template"]["metadata"]["labels"],
                    },
                    "spec": {"containers": [{"name": "engine", "image": "x"}]},
                }
                answer = api.create(self.bench.path(*PODS), body, dry_run=False)
                assert answer.status_code == 201, answer.text
                api.patch(self.bench.path(*PODS, answer.json()["metadata"]["name"]) + "/status", {"status": READY})
