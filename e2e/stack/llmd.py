"""LLMDeployments in tests: made from the example that users apply, and waited for by condition."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import yaml

from cluster.errors import DeadlineError
from cluster.handle import Cluster
from stack.progress import ROOT


def example(name: str, **spec: Any) -> dict[str, Any]:
    """`examples/smollm2.yaml` under another name, which is also its served name, with `spec` merged in one level deep."""
    manifest: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "smollm2.yaml").read_text())
    manifest["metadata"] = {"name": name}
    manifest["spec"]["model"].pop("servedName", None)
    for key, value in spec.items():
        if value is None:
            manifest["spec"].pop(key, None)
        elif isinstance(value, dict):
            manifest["spec"][key] = {**manifest["spec"].get(key, {}), **value}
        else:
            manifest["spec"][key] = value
    return manifest


def apply(cluster: Cluster, namespace: str, manifest: dict[str, Any]) -> None:
    """`kubectl apply` of one manifest."""
    cluster.apply(manifest, namespace=namespace)


def patch_spec(cluster: Cluster, namespace: str, name: str, spec: dict[str, Any]) -> None:
    """Merge `spec` into the object as an editing user would."""
    cluster.kubectl("patch", f"llmd/{name}", "-n", namespace, "--type=merge", "--patch", json.dumps({"spec": spec}))


def get(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """The object as it is now."""
    return cluster.kubectl_json("get", f"llmd/{name}", "-n", namespace)


def wait(cluster: Cluster, namespace: str, name: str, expectation: str, *, deadline_s: int) -> None:
    """Wait for `condition=…` or `jsonpath=…`; on failure the error carries what the object and its pods say."""
    try:
        cluster.wait(f"llmd/{name}", expectation, namespace=namespace, deadline_s=deadline_s)
    except DeadlineError as exc:
        exc.add_note(cluster.kubectl("get", "pods,hpa,events", "-n", namespace, "-o", "wide"))
        raise


def wait_ready(cluster: Cluster, namespace: str, name: str, *, deadline_s: int = 240) -> None:
    """Wait until the current generation is observed and Ready."""
    generation = get(cluster, namespace, name)["metadata"]["generation"]
    wait(cluster, namespace, name, f"jsonpath={{.status.observedGeneration}}={generation}", deadline_s=60)
    wait(cluster, namespace, name, "condition=Ready", deadline_s=deadline_s)


def condition(cluster: Cluster, namespace: str, name: str, kind: str) -> dict[str, Any]:
    """The condition of that type; empty where there is none."""
    conditions: list[dict[str, Any]] = get(cluster, namespace, name).get("status", {}).get("conditions", [])
    return next((c for c in conditions if c["type"] == kind), {})


def prove_acted_on(cluster: Cluster, namespace: str, name: str, replicas: int) -> None:
    """Two edits that need no pod, waited for: an operator is there and acts on this object."""
    scaling = {"minReplicas": replicas, "maxReplicas": replicas, "targets": {"queueSize": "1000"}}
    patch_spec(cluster, namespace, name, {"replicas": None, "autoscaling": scaling})
    cluster.wait(f"hpa/{name}", "create", namespace=namespace, deadline_s=120)
    patch_spec(cluster, namespace, name, {"replicas": replicas, "autoscaling": None})
    cluster.wait(f"hpa/{name}", "delete", namespace=namespace, deadline_s=120)
    wait_ready(cluster, namespace, name)


def kinds(cluster: Cluster) -> tuple[str, ...]:
    """All that a namespace may hold. Events are left out: they stay for an hour by design."""
    found = cluster.kubectl("api-resources", "--namespaced", "--verbs=list,delete", "-o", "name").split()
    return tuple(kind for kind in found if not kind.startswith("events"))


def everything(cluster: Cluster, namespace: str, of: Collection[str] = ()) -> set[str]:
    """All objects of a namespace, whatever their kind and labels. of: `kinds`, where they cannot be asked for now."""
    return set(cluster.kubectl("get", ",".join(of or kinds(cluster)), "-n", namespace, "-o", "name").split())
