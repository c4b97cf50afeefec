"""Promise: deleting an LLMDeployment leaves nothing, by owner references alone."""

from __future__ import annotations

from cluster.handle import Cluster
from stack import llmd

NAME = "leaving"


def test_delete_leaves_nothing(stack: Cluster, namespace: str) -> None:
    autoscaling = {"minReplicas": 1, "maxReplicas": 2, "targets": {"queueSize": "4"}}
    llmd.apply(stack, namespace, llmd.example(NAME, replicas=None, autoscaling=autoscaling))
    llmd.wait_ready(stack, namespace, NAME)
    kinds = "deployments,replicasets,pods,services,endpointslices,horizontalpodautoscalers,configmaps,secrets,poddisruptionbudgets"
    mine = ("-n", namespace, "-l", f"quire.dev/deployment={NAME}", "-o", "name")
    children = stack.kubectl("get", kinds, *mine).split()
    assert {name.split("/")[0].split(".")[0] for name in children} >= {
        "deployment",
        "pod",
        "service",
        "horizontalpodautoscaler",
    }

    assert not llmd.get(stack, namespace, NAME)["metadata"].get("finalizers")
    stack.kubectl("delete", f"llmd/{NAME}", "-n", namespace, "--wait=true", "--timeout=60s")
    for child in children:
        stack.kubectl("wait", child, "-n", namespace, "--for=delete", "--timeout=120s")
    assert stack.kubectl("get", kinds, *mine).split() == []
