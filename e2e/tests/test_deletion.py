"""Promise: deleting an LLMDeployment leaves nothing, by owner references alone: whether an operator is there or not."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster import wait
from cluster.handle import Cluster
from stack import llmd, release

NAME = "leaving"
NOWHERE = {"spec": {"nodeSelector": {"e2e.quire.dev/nobody": "has-this"}}}
"""Pods that wait for a node: they cost nothing, and go at once."""
HUB = {"source": "hf://example-org/example"}
"""Nothing asks for it: no pod runs."""
CACHE = {"size": "1Gi", "accessModes": ["ReadWriteMany"]}
SCALING = {"minReplicas": 1, "maxReplicas": 2, "targets": {"queueSize": "4"}}
ALL_KINDS = {
    "deployment", "horizontalpodautoscaler", "job", "llmadapter", "llmdeployment", "modelcache", "networkpolicy", "persistentvolumeclaim",
    "pod", "poddisruptionbudget", "resourceclaimtemplate", "service", "serviceaccount", "statefulset",
}  # fmt: skip
"""The operator's own, and every one that it makes."""
SYSTEM = ("-n", release.NAMESPACE)


@pytest.fixture(scope="module")
def before(stack: Cluster, namespace: str) -> set[str]:
    """What a namespace has of itself."""
    for standard in ("serviceaccount/default", "configmap/kube-root-ca.crt"):  # Kubernetes adds them to each namespace
        stack.wait(standard, "create", namespace=namespace, deadline_s=60)
    return llmd.everything(stack, namespace)


def kinds_of(names: Collection[str]) -> set[str]:
    return {re.split(r"[./]", name)[0] for name in names}


def goes(cluster: Cluster, namespace: str, before: set[str], of: Collection[str] = ()) -> None:
    def left() -> str | None:
        return " ".join(sorted(llmd.everything(cluster, namespace, of) - before)) or None

    wait.until("everything of the LLMDeployment goes", left, deadline_s=120, interval_s=1)


def test_delete_leaves_nothing(stack: Cluster, namespace: str, before: set[str]) -> None:
    llmd.apply(stack, namespace, llmd.example(NAME, replicas=None, autoscaling=SCALING))
    llmd.wait_ready(stack, namespace, NAME)
    children = llmd.everything(stack, namespace) - before
    assert kinds_of(children) >= {"llmdeployment", "deployment", "pod", "service", "horizontalpodautoscaler"}

    assert not llmd.get(stack, namespace, NAME)["metadata"].get("finalizers")
    stack.kubectl("delete", f"llmd/{NAME}", "-n", namespace, "--wait=true", "--timeout=60s")
    goes(stack, namespace, before)


def ours(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": NAME}, "spec": spec}


def make_all_kinds(cluster: Cluster, namespace: str) -> None:
    united = llmd.example(
        f"{NAME}-united",
        model={**HUB, "cache": CACHE},
        engine={"tensorParallelSize": 2},
        resources={"devices": {"deviceClassName": "gpu.example"}},
        template=NOWHERE,
    )
    scaled = llmd.example(f"{NAME}-scaled", replicas=None, autoscaling=SCALING, template=NOWHERE)
    cache = ours("ModelCache", model=HUB, size="1Gi")
    adapter = ours("LLMAdapter", deployment=f"{NAME}-scaled", source="hf://example-org/lora")
    cluster.apply(united, scaled, cache, adapter, namespace=namespace)


@contextmanager
def no_operator(cluster: Cluster) -> Iterator[None]:
    operator = "deployment/quire-operator"
    cluster.kubectl("scale", operator, "--replicas=0", *SYSTEM)
    try:
        everyone = ("pods", "-l", "app.kubernetes.io/name=quire-operator")
        cluster.kubectl("wait", *everyone, *SYSTEM, "--for=delete", "--timeout=120s")
        yield
    finally:
        cluster.kubectl("scale", operator, "--replicas=1", *SYSTEM)
        cluster.kubectl("rollout", "status", operator, *SYSTEM, "--timeout=180s")


@pytest.mark.alone
def test_without_an_operator_nothing_is_left_either(stack: Cluster, namespace: str, before: set[str]) -> None:
    of = llmd.kinds(stack)  # not all groups can be asked for theirs while the operator's metrics API is away
    make_all_kinds(stack, namespace)

    def missing() -> str | None:
        made = llmd.everything(stack, namespace, of) - before
        units = [name for name in made if name.startswith("statefulset.")]  # of leaders, and of the workers of the one
        return " ".join(sorted(ALL_KINDS - kinds_of(made))) or (None if len(units) > 1 else "workers")

    wait.until("an object of each kind", missing, deadline_s=120, interval_s=1)
    with no_operator(stack):
        owners = ("llmdeployments.quire.dev,modelcaches.quire.dev,llmadapters.quire.dev", "--all")
        stack.kubectl("delete", *owners, "-n", namespace, "--wait=true", "--timeout=60s")
        goes(stack, namespace, before, of)
