"""Promise: load makes the real HPA go 1 → 2 and back, on the queue metric, with nothing installed besides the chart; pods that have stopped
talking are not taken for idle ones."""

from __future__ import annotations

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts
from stack.load import Load

NAME = "scaling"
SIGNAL = """
import os, pathlib, signal, sys
for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"\\0serve\\0" in each.read_bytes():
        os.kill(int(each.parent.name), getattr(signal, sys.argv[1]))
"""
"""In the container: to each process of the engine. The first one of all, tini, cannot be stopped, and keeps the container alive."""


def signal_engines(cluster: Cluster, namespace: str, signal: str) -> None:
    for pod in rollouts.pods(cluster, namespace, NAME):
        name = pod["metadata"]["name"]
        cluster.kubectl("exec", name, "-n", namespace, "-c", "engine", "--", "python", "-c", SIGNAL, signal)


@pytest.mark.timeout(900)
def test_load_scales_up_silence_holds_and_quiet_scales_down(stack: Cluster, namespace: str, router: str) -> None:
    manifest = llmd.example(
        NAME,
        engine={"maxNumSeqs": 1},
        replicas=None,
        autoscaling={
            "minReplicas": 1,
            "maxReplicas": 2,
            "targets": {"queueSize": "2"},
            "scaleDown": {"stabilization": "5s"},
        },
        # Pods stand still here for longer than the minute after which they would begin anew.
        template={"spec": {"containers": [{"name": "engine", "livenessProbe": {"failureThreshold": 60}}]}},
    )
    llmd.apply(stack, namespace, manifest)
    llmd.wait_ready(stack, namespace, NAME)
    assert llmd.get(stack, namespace, NAME)["spec"]["replicas"] == 1

    with Load(router, NAME, clients=8) as load:
        llmd.wait(stack, namespace, NAME, "jsonpath={.spec.replicas}=2", deadline_s=90)
        told = "jsonpath={.status.currentMetrics[*].pods.metric.name}=quire_scheduler_queue_size"
        stack.wait(f"hpa/{NAME}", told, namespace=namespace, deadline_s=60)
        llmd.wait(stack, namespace, NAME, "jsonpath={.status.readyReplicas}=2", deadline_s=180)
        assert load.completed > 0 and load.errors == []
        held_without_metrics(stack, namespace)

    llmd.wait(stack, namespace, NAME, "jsonpath={.spec.replicas}=1", deadline_s=120)
    llmd.wait(stack, namespace, NAME, "jsonpath={.status.replicas}=1", deadline_s=180)
    llmd.wait_ready(stack, namespace, NAME)


def held_without_metrics(cluster: Cluster, namespace: str) -> None:
    """Both engines stand still until the autoscaler has found no metric and their pods are not ready any more."""
    before = rollouts.identities(cluster, namespace, NAME)
    signal_engines(cluster, namespace, "SIGSTOP")
    try:
        cluster.wait(f"hpa/{NAME}", "condition=ScalingActive=False", namespace=namespace, deadline_s=60)
        llmd.wait(cluster, namespace, NAME, "condition=Available=False", deadline_s=60)
        assert llmd.get(cluster, namespace, NAME)["spec"]["replicas"] == 2
    finally:
        signal_engines(cluster, namespace, "SIGCONT")
    llmd.wait(cluster, namespace, NAME, "jsonpath={.status.readyReplicas}=2", deadline_s=120)
    assert rollouts.identities(cluster, namespace, NAME) == before, "no pod was taken away, nor a new one made"
