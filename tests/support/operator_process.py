"""The operator as a process against a real API server, with no right but those that the chart gives it. No kubelet: pods are not played."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from cluster.progress import Progress
from cluster.tools import HELM, ensure
from cluster.wait import until
from real_api import OPERATOR, RealApi

CHART = Path(__file__).resolve().parents[2] / "charts" / "quire"
GROUP = "/apis/quire.dev/v1alpha1"
WRITTEN = {
    GROUP: ("llmdeployments", "modelcaches", "llmadapters"),
    "/apis/apps/v1": ("deployments",),
    "/apis/batch/v1": ("jobs",),
    "/apis/policy/v1": ("poddisruptionbudgets",),
    "/apis/networking.k8s.io/v1": ("networkpolicies",),
    "/apis/events.k8s.io/v1": ("events",),
    "/api/v1": ("services", "serviceaccounts", "persistentvolumeclaims"),
}


class OperatorProcess:
    """A running operator, and the namespace that it watches."""

    def __init__(self, api: RealApi, folder: Path) -> None:
        self.api = api
        self.namespace = api.namespace()
        self.log = folder / "operator.log"
        config = folder / "kubeconfig"
        config.write_text(json.dumps(api.kubeconfig(OPERATOR)))
        self.rules = grant(api, self.namespace)
        ports = {name: _free_port() for name in ("METRICS_PORT", "HEALTH_PORT")}
        self.metrics = f"http://127.0.0.1:{ports['METRICS_PORT']}/metrics"
        settings = {
            "METRICS_API": "false",
            "HOST": "127.0.0.1",
            "ROUTER_URL": "http://127.0.0.1:1",
            "WATCH_NAMESPACES": self.namespace,
            "RESYNC_INTERVAL_S": "5",
            **{name: str(port) for name, port in ports.items()},
        }
        environment = {
            **os.environ,
            "KUBECONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(sys.path),
            **{f"QUIRE_OPERATOR_{name}": value for name, value in settings.items()},
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
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(120) == 0, self.log.read_text()[-3000:]

    def path(self, group: str, plural: str, name: str = "") -> str:
        return f"{group}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def create(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        answer = self.api.create(self.path(GROUP, plural), body, dry_run=False)
        assert answer.status_code == 201, answer.text

    def until(self, what: str, seen: Callable[[], object]) -> None:
        until(what, lambda: None if seen() else "not yet", deadline_s=120, log=self.log)

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


def grant(api: RealApi, namespace: str) -> list[dict[str, Any]]:
    """Give the operator's user, in this namespace, the Role that the chart renders for a watched namespace; its rules."""
    helm = ensure(Progress(), (HELM,))["helm"]
    values = json.dumps({"watchNamespaces": [namespace], "metricsApi": {"enabled": False}})
    command = [str(helm), "template", "quire", str(CHART), "--kube-version", "1.34.4", "--values", "-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=True, timeout=60)
    role = next(
        body
        for body in yaml.safe_load_all(done.stdout)
        if body and body["kind"] == "Role" and body["metadata"]["name"] == "quire-operator"
    )
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    binding = {
        "metadata": {"name": "quire-operator"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "quire-operator"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": OPERATOR}],
    }
    for plural, body in (("roles", role), ("rolebindings", binding)):
        answer = api.create(f"{where}/{plural}", body, dry_run=False)
        assert answer.status_code == 201, answer.text
    return list(role["rules"])


@contextmanager
def operator_process(api: RealApi, folder: Path) -> Iterator[OperatorProcess]:
    """Started, and stopped afterwards."""
    made = OperatorProcess(api, folder)
    try:
        yield made
    finally:
        made.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
