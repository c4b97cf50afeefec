"""The operator as a process against a real API server, with no right but those that the chart gives it. No kubelet: pods are not played."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from cluster.wait import until
from helm_kit import render, variables
from real_api import EVERYWHERE, OPERATORS, ROUTER, RealApi

Rules = list[dict[str, Any]]
GROUP = "/apis/quire.dev/v1alpha1"
WRITTEN = {
    GROUP: ("llmdeployments", "modelcaches", "llmadapters"),
    "/apis/apps/v1": ("deployments", "statefulsets"),
    "/apis/batch/v1": ("jobs",),
    "/apis/policy/v1": ("poddisruptionbudgets",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
    "/apis/events.k8s.io/v1": ("events",),
    "/api/v1": ("services", "serviceaccounts", "persistentvolumeclaims"),
}


class OperatorProcess:
    """A running operator, set up as the chart does, and the namespace that it watches: one of its own, or that of the one it is `beside`.

    everywhere: it watches all namespaces and serves the metrics API; `namespace` is its own then. server: the address it finds the API server at.
    groups: set up as in a cluster that has LeaderWorkerSets.
    """

    def __init__(
        self,
        api: RealApi,
        folder: Path,
        *,
        beside: OperatorProcess | None = None,
        everywhere: bool = False,
        server: str | None = None,
        groups: bool = False,
    ) -> None:
        self.api = api
        self.user = EVERYWHERE if everywhere else OPERATORS[0 if beside is None else 1]
        self.namespace = api.namespace() if beside is None else beside.namespace
        self.log = folder / "operator.log"
        config = folder / "kubeconfig"
        config.write_text(json.dumps(api.kubeconfig(self.user, server=server)))
        values: dict[str, Any] = (
            {} if everywhere else {"watchNamespaces": [self.namespace], "metricsApi": {"enabled": False}}
        )
        more = "leaderworkerset.x-k8s.io/v1" if groups else ""
        self.objects = render(values, namespace=self.namespace, api=more)
        users = {"quire-operator": (EVERYWHERE,) if everywhere else OPERATORS, "quire-router": (ROUTER,)}
        self.granted = grant(api, self.objects, users) if beside is None else beside.granted
        ports = {name: free_port() for name in ("METRICS_PORT", "HEALTH_PORT", "METRICS_API_PORT")}
        self.metrics = f"http://127.0.0.1:{ports['METRICS_PORT']}/metrics"
        self.metrics_api = f"https://127.0.0.1:{ports['METRICS_API_PORT']}"
        self._health = f"http://127.0.0.1:{ports['HEALTH_PORT']}"
        own = {
            "HOST": "127.0.0.1",
            "ROUTER_URL": "http://127.0.0.1:1",
            "RESYNC_INTERVAL_S": "5",
            **{name: str(port) for name, port in ports.items()},
        }
        environment = {
            **os.environ,
            "KUBECONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(sys.path),
            **variables(self.objects, "operator"),
            **{f"QUIRE_OPERATOR_{name}": value for name, value in own.items()},
        }
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quire_operator"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def stop(self) -> None:
        """As the kubelet does."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.log.read_text()[-3000:]

    def path(self, group: str, plural: str, name: str = "") -> str:
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        answer = self.api.create(self.path(GROUP, plural), body, dry_run=False)
        assert answer.status_code == 201, answer.text

    def register(self, api_services: str) -> None:
        """Make its APIServices, as the chart does, and wait until it serves them."""
        for each in self.objects:
            if each["kind"] == "APIService":
                assert self.api.create(api_services, each, dry_run=False).status_code == 201
        self.until("it serves", lambda: self.answers("/readyz"))

    def updated(self, name: str) -> str | None:
        """The revision of an LLMDeployment that is wanted, as the status tells."""
        status = (self.api.get(self.path(GROUP, "llmdeployments", name)) or {}).get("status") or {}
        revision: str | None = status.get("updatedRevision")
        return revision

    def arrive(self, name: str) -> None:
        """A pod of the wanted revision is ready; nothing answers at its address."""
        workload = self.api.get(self.path("/apis/apps/v1", "deployments", f"{name}-{self.updated(name)}"))
        assert workload is not None
        metadata = {"name": "arrived", "labels": workload["spec"]["template"]["metadata"]["labels"]}
        pods = self.path("/api/v1", "pods")
        body = {"metadata": metadata, "spec": {"containers": [{"name": "engine", "image": "x"}]}}
        answer = self.api.create(pods, body, dry_run=False)
        assert answer.status_code == 201, answer.text
        ready = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
        self.api.patch(f"{pods}/arrived/status", {"status": ready})

    def until(self, what: str, seen: Callable[[], object]) -> None:
        until(what, lambda: None if seen() else "not yet", deadline_s=120, log=self.log)

    def answers(self, path: str) -> bool:
        """Whether a probe succeeds."""
        try:
            return httpx.get(f"{self._health}{path}", trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def items(self, group: str, plural: str) -> list[dict[str, Any]]:
        listed = self.api.get(self.path(group, plural))
        assert listed is not None
        return list(listed["items"])

    def versions(self) -> dict[str, str]:
        """Of everything in the namespace that the operator writes; they change with every write."""
        return {
            f"{plural}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for group, plurals in WRITTEN.items()
            for plural in plurals
            for item in self.items(group, plural)
        }

    def looks(self) -> float:
        """Looks so far, of all queues."""
        page = httpx.get(self.metrics, trust_env=False).text
        found = re.search(r"^quire_operator_reconcile_seconds_count (\S+)$", page, re.MULTILINE)
        assert found is not None
        return float(found[1])


def grant(api: RealApi, objects: list[dict[str, Any]], users: Mapping[str, Sequence[str]]) -> dict[str, Rules]:
    """Make the roles that the chart renders, and bind users to them instead of its ServiceAccounts; the rules of each account.

    Rights on what comes with the cluster (the aggregator's ConfigMap) are given, but are not among the rules."""
    roles = {(each["kind"], each["metadata"]["name"], each["metadata"].get("namespace")): each for each in objects}
    granted: dict[str, Rules] = {account: [] for account in users}
    made = set()
    for binding in objects:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        [subject] = binding["subjects"]
        where = binding["metadata"].get("namespace")
        key = (binding["roleRef"]["kind"], binding["roleRef"]["name"], where)
        if key in roles and key not in made:
            _create(api, roles[key])
            granted[subject["name"]] += roles[key]["rules"]
            made.add(key)
        kind = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User"}
        _create(api, {**binding, "subjects": [{**kind, "name": user} for user in users[subject["name"]]]})
    return granted


def _create(api: RealApi, body: dict[str, Any]) -> None:
    namespace, plural = body["metadata"].get("namespace"), f"{body['kind'].lower()}s"
    below = f"/namespaces/{namespace}" if namespace else ""
    answer = api.create(f"/apis/rbac.authorization.k8s.io/v1{below}/{plural}", body, dry_run=False)
    assert answer.status_code == 201, answer.text


@contextmanager
def operator_process(
    api: RealApi,
    folder: Path,
    *,
    beside: OperatorProcess | None = None,
    everywhere: bool = False,
    server: str | None = None,
    groups: bool = False,
) -> Iterator[OperatorProcess]:
    """Started, and stopped afterwards."""
    made = OperatorProcess(api, folder, beside=beside, everywhere=everywhere, server=server, groups=groups)
    try:
        yield made
    finally:
        made.stop()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
