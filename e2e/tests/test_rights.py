"""Promise: least privilege. Operator and router have no right that they do not use and are refused nothing, as the API server's audit log
tells, and their pods of every kind are admitted where only restricted ones are.

No pod but the last one runs: what is asked for is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cluster import providers, wait
from cluster.handle import Cluster, Event
from cluster.local import LocalProvider
from stack import llmd, release, rollouts

pytestmark = pytest.mark.timeout(600)

NAME = "rights"
HUB: dict[str, Any] = {"source": "hf://example-org/example"}
FULL: dict[str, Any] = {
    "model": {**HUB, "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}},
    "engine": {"tensorParallelSize": 2},
    "resources": {"devices": {"deviceClassName": "gpu.example"}},
    "template": {"spec": {"nodeSelector": {"e2e.quire.dev/nobody": "has-this"}}},
    "rollout": {"strategy": "Recreate", "revisionHistoryLimit": 0, "drainTimeout": "0s"},
}
LEAST: dict[str, Any] = {
    "model": {"source": "file:///models/smollm2.gguf", "cache": None},
    "resources": {"devices": None},
    "template": None,
    "networkPolicy": {"enabled": False},
    "serviceAccountName": "default",
    "replicas": None,
    "autoscaling": {
        "minReplicas": 0,
        "maxReplicas": 1,
        "targets": {"queueSize": "4"},
    },  # so that routers are asked who waits
}
"""Of the objects around the pods that FULL has, none."""

OWN = {"apiVersion": "quire.dev/v1alpha1", "metadata": {"name": NAME}}
ROLES = {
    "operator": (
        ("clusterrole", f"{release.NAME}-operator"),
        ("role", f"{release.NAME}-operator-routers", "-n", release.NAMESPACE),
    ),
    "router": (("clusterrole", f"{release.NAME}-router"),),
}
"""By part. Those for its certificate and its Lease are used once in a while, some of them in months."""

Right = tuple[str, str, str]
"""Group, resource, verb."""


@pytest.fixture(scope="module")
def provider() -> LocalProvider:
    chosen = providers.choose()
    if not isinstance(chosen, LocalProvider):
        pytest.skip("only the local cluster has an audit log that can be read")
    return chosen


def granted(cluster: Cluster, part: str) -> set[Right]:
    rules = [rule for role in ROLES[part] for rule in cluster.kubectl_json("get", *role)["rules"]]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked(cluster: Cluster, provider: LocalProvider, part: str) -> list[dict[str, Any]]:
    """Events of the pods that run now: those before them may have had other rights."""
    pods = cluster.kubectl_json(
        "get", "pods", "-n", release.NAMESPACE, "-l", f"app.kubernetes.io/name={release.NAME}-{part}"
    )
    names = {pod["metadata"]["name"] for pod in pods["items"]}
    events = provider.audited(f"system:serviceaccount:{release.NAMESPACE}:{release.NAME}-{part}")
    return [
        event
        for event in events
        if names & set(event["user"].get("extra", {}).get("authentication.kubernetes.io/pod-name", ()))
    ]


def used(events: list[dict[str, Any]]) -> set[Right]:
    """Server-side apply that makes an object needs the right to create it, too."""
    found: set[Right] = set()
    for event in events:
        if (where := event.get("objectRef")) is None:  # discovery, which everybody may
            continue
        resource = "/".join(filter(None, (where["resource"], where.get("subresource"))))
        verbs = {event["verb"]} | ({"create"} if event.get("responseStatus", {}).get("code") == 201 else set())
        found |= {(where.get("apiGroup", ""), resource, verb) for verb in verbs}
    return found


def refused(events: list[dict[str, Any]]) -> list[str]:
    """A namespace that goes refuses with the same status, but not for want of a right."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in events
        if event.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]


def until(what: str, holds: Callable[[], bool]) -> None:
    wait.until(what, lambda: None if holds() else "not yet", deadline_s=120, interval_s=0.5)


def a_unit_lives(cluster: Cluster, namespace: str) -> None:
    """Its leader is told that it is whole, and is deleted once its worker was."""

    def pods() -> dict[str, dict[str, Any]]:
        found = (pod["metadata"] for pod in rollouts.pods(cluster, namespace, NAME))
        return {each["labels"]["quire.dev/role"]: each for each in found if "deletionTimestamp" not in each}

    until("both pods of a unit", lambda: len(pods()) == 2)
    before = pods()
    ready = {"conditions": [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]}
    for pod in before.values():  # no kubelet has them, so nobody else says so
        change = ("--subresource=status", "--patch", json.dumps({"status": ready}))
        cluster.kubectl("patch", f"pod/{pod['name']}", "-n", namespace, *change)
    leader = f"pod/{before['leader']['name']}"
    cluster.wait(leader, "condition=quire.dev/unit-ready", namespace=namespace, deadline_s=120)
    cluster.kubectl("delete", f"pod/{before['worker']['name']}", "-n", namespace, "--wait=false")
    until("another leader", lambda: pods().get("leader", before["leader"])["uid"] != before["leader"]["uid"])


def a_cache_is_filled_another_way(cluster: Cluster, namespace: str) -> None:
    job = (f"job/{NAME}-modelcache-fill", "-n", namespace)
    cluster.wait(job[0], "create", namespace=namespace, deadline_s=120)
    uid = cluster.kubectl_json("get", *job)["metadata"]["uid"]
    token = {"spec": {"model": {"tokenSecretRef": {"name": "none"}}}}
    cluster.kubectl("patch", f"modelcache/{NAME}", "-n", namespace, "--type=merge", "--patch", json.dumps(token))

    def another(event: Event) -> bool:
        return event.type == "ADDED" and event.object["metadata"]["uid"] != uid

    cluster.watch("another Job", *job, until=another, deadline_s=120)


def live_through(cluster: Cluster, namespace: str) -> None:
    """What an LLMDeployment and a ModelCache may meet."""
    cluster.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    cluster.apply(
        llmd.example(NAME, **FULL),
        {**OWN, "kind": "ModelCache", "spec": {"model": HUB, "size": "1Gi"}},
        {**OWN, "kind": "LLMAdapter", "spec": {"deployment": NAME, "source": "hf://example-org/lora"}},
        namespace=namespace,
    )
    a_unit_lives(cluster, namespace)
    a_cache_is_filled_another_way(cluster, namespace)

    rollouts.command(cluster, namespace, NAME, "retry")
    until(
        "the command is carried out and removed",
        lambda: "quire.dev/rollout" not in llmd.get(cluster, namespace, NAME)["metadata"]["annotations"],
    )

    llmd.patch_spec(cluster, namespace, NAME, {"engine": {"tensorParallelSize": None}})
    of = ("deployments", "-n", namespace, f"--selector=quire.dev/deployment={NAME}")
    first = cluster.watch("a Deployment", *of, until=lambda event: event.type == "ADDED", deadline_s=120)
    llmd.patch_spec(cluster, namespace, NAME, LEAST)
    llmd.wait_ready(cluster, namespace, NAME)
    cluster.wait(f"deployment/{first['metadata']['name']}", "delete", namespace=namespace, deadline_s=120)
    llmd.patch_spec(cluster, namespace, NAME, {"replicas": 1, "autoscaling": None})
    cluster.wait(f"hpa/{NAME}", "delete", namespace=namespace, deadline_s=120)


def test_every_right_is_used_and_none_is_missing(stack: Cluster, provider: LocalProvider, namespace: str) -> None:
    try:
        live_through(stack, namespace)
    finally:
        stack.kubectl("delete", "modelcaches,llmadapters", "--all", "-n", namespace)

    def unused() -> str | None:
        left = [right for part in ROLES for right in granted(stack, part) - used(asked(stack, provider, part))]
        return "; ".join(" ".join(right) for right in sorted(left)) or None

    wait.until("every right is used", unused, deadline_s=60, interval_s=2)
    assert [line for part in ROLES for line in refused(asked(stack, provider, part))] == []
