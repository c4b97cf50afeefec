"""Promise: deleting an LLMDeployment leaves nothing, by owner references alone."""

from __future__ import annotations

import re

from cluster import wait
from cluster.handle import Cluster
from stack import llmd

NAME = "leaving"


def test_delete_leaves_nothing(stack: Cluster, namespace: str) -> None:
    for standard in ("serviceaccount/default", "configmap/kube-root-ca.crt"):  # Kubernetes adds them to each namespace
        stack.wait(standard, "create", namespace=namespace, deadline_s=60)
    before = llmd.everything(stack, namespace)
    autoscaling = {"minReplicas": 1, "maxReplicas": 2, "targets": {"queueSize": "4"}}
    llmd.apply(stack, namespace, llmd.example(NAME, replicas=None, autoscaling=autoscaling))
    llmd.wait_ready(stack, namespace, NAME)
    children = llmd.everything(stack, namespace) - before
    assert {re.split(r"[./]", name)[0] for name in children} >= {
        "llmdeployment",
        "deployment",
        "pod",
        "service",
        "horizontalpodautoscaler",
    }

    assert not llmd.get(stack, namespace, NAME)["metadata"].get("finalizers")
    stack.kubectl("delete", f"llmd/{NAME}", "-n", namespace, "--wait=true", "--timeout=60s")

    def left() -> str | None:
        return " ".join(sorted(llmd.everything(stack, namespace) - before)) or None

    wait.until("everything of the LLMDeployment goes", left, deadline_s=120, interval_s=1)
