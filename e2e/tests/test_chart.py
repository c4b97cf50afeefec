"""Promise: a real API server takes every object of the chart, the parts run with the rights they get, and an upgrade disturbs nothing."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.handle import Cluster
from stack import release
from stack.prepare import Prepared
from stack.progress import ROOT

REFUSED = re.compile(r"\b(status|code)\D{0,3}403\b|[Ff]orbidden")
"""A line of a log that tells of a missing right; 403 alone is also a part of a time stamp."""

EVERYTHING: dict[str, Any] = {
    "imagePullSecrets": [{"name": "registry"}],
    "operator": {
        "replicas": 2,
        "extraEnv": [{"name": "QUIRE_OPERATOR_WORKERS", "value": "4"}],
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "b"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    },
    "router": {
        "replicas": 3,
        "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
        "drainTimeoutSeconds": 0.5,
    },
}


@pytest.fixture(scope="module")
def restricted(stack: Cluster) -> Iterator[str]:
    """A namespace that admits restricted pods only. The release is installed, so the definitions exist."""
    name = f"e2e-chart-{uuid.uuid4().hex[:8]}"
    stack.kubectl("create", "namespace", name)
    stack.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    stack.wait("serviceaccount/default", "create", namespace=name, deadline_s=60)
    yield name
    stack.kubectl("delete", "namespace", name, "--wait=false")


def render(cluster: Cluster, namespace: str, values: dict[str, Any], scratch: Path) -> list[dict[str, Any]]:
    file = scratch / "values.json"
    file.write_text(json.dumps(values))
    version = cluster.kubectl_json("version")["serverVersion"]["gitVersion"]
    text = cluster.helm(
        "template",
        "dry",
        str(release.CHART),
        "--namespace",
        namespace,
        "--values",
        str(file),
        "--kube-version",
        version,
    )
    return [item for item in yaml.safe_load_all(text) if item]


def dry_run(cluster: Cluster, objects: list[dict[str, Any]], scratch: Path) -> list[str]:
    file = scratch / "objects.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return cluster.kubectl("apply", "--dry-run=server", "--filename", str(file), "--output", "name").split()


@pytest.mark.parametrize("case", ["default", "everything", "some namespaces", "no metrics API"])
def test_every_rendered_object_passes_a_server_side_dry_run(
    stack: Cluster, restricted: str, tmp_path: Path, case: str
) -> None:
    values = {
        "default": {},
        "everything": EVERYTHING,
        "some namespaces": {"watchNamespaces": [restricted, "default"]},
        "no metrics API": {"metricsApi": {"enabled": False}, "rbac": {"aggregate": False}},
    }[case]
    objects = render(stack, restricted, values, tmp_path)
    assert len(dry_run(stack, objects, tmp_path)) == len(objects)


def test_the_pods_are_admitted_where_only_restricted_ones_are(stack: Cluster, restricted: str, tmp_path: Path) -> None:
    deployments = [item for item in render(stack, restricted, {}, tmp_path) if item["kind"] == "Deployment"]
    pods = []
    for deployment in deployments:
        template = deployment["spec"]["template"]
        # The account is not created by a dry run, and admission asks for it.
        spec = {**template["spec"], "serviceAccountName": "default"}
        metadata = {
            "name": deployment["metadata"]["name"],
            "namespace": restricted,
            "labels": template["metadata"]["labels"],
        }
        pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    assert len(dry_run(stack, pods, tmp_path)) == 2


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_passes_a_server_side_dry_run(stack: Cluster, restricted: str, example: Path) -> None:
    stack.kubectl("apply", "--dry-run=server", "--namespace", restricted, "--filename", str(example))


def test_the_metrics_api_is_available_and_nobody_lacks_a_right(stack: Cluster) -> None:
    for version in ("v1beta1", "v1beta2"):
        stack.wait(f"apiservice/{version}.custom.metrics.k8s.io", "condition=Available", deadline_s=60)
    for part in ("operator", "router"):
        logs = stack.kubectl("logs", f"deployment/{release.NAME}-{part}", "--namespace", release.NAMESPACE, "--tail=-1")
        assert not [line for line in logs.splitlines() if REFUSED.search(line)], part


def test_an_upgrade_without_a_change_changes_nothing(stack: Cluster, prepared: Prepared) -> None:
    def state() -> dict[str, Any]:
        pods = stack.kubectl_json("get", "pods", "--namespace", release.NAMESPACE)
        services = stack.kubectl_json("get", "apiservices", "--selector", "app.kubernetes.io/part-of=quire")
        secret = stack.kubectl_json("get", f"secret/{release.NAME}-operator-tls", "--namespace", release.NAMESPACE)
        return {
            "pods": {item["metadata"]["uid"] for item in pods["items"]},
            "authorities": {item["metadata"]["name"]: item["spec"]["caBundle"] for item in services["items"]},
            "certificate": secret["data"],
        }

    before = state()
    assert len(before["pods"]) == 2
    assert len(before["authorities"]) == 2
    release.install(prepared)
    assert state() == before
