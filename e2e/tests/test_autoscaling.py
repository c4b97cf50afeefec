"""Promise: load makes the real HPA go 1 → 2 and back, on the queue metric, with nothing installed besides the chart."""

from __future__ import annotations

import pytest

from cluster.handle import Cluster
from stack import llmd
from stack.load import Load

NAME = "scaling"


@pytest.mark.timeout(600)
def test_load_scales_up_and_quiet_scales_down(stack: Cluster, namespace: str, router: str) -> None:
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
    )
    llmd.apply(stack, namespace, manifest)
    llmd.wait_ready(stack, namespace, NAME)
    assert llmd.get(stack, namespace, NAME)["spec"]["replicas"] == 1

    with Load(router, NAME, clients=8) as load:
        llmd.wait(stack, namespace, NAME, "jsonpath={.spec.replicas}=2", deadline_s=90)
        hpa = stack.kubectl_json("get", "hpa", NAME, "-n", namespace)
        assert [metric["pods"]["metric"]["name"] for metric in hpa["status"]["currentMetrics"]] == [
            "quire_scheduler_queue_size"
        ]
        llmd.wait(stack, namespace, NAME, "jsonpath={.status.readyReplicas}=2", deadline_s=180)
    assert load.completed > 0 and load.errors == []

    llmd.wait(stack, namespace, NAME, "jsonpath={.spec.replicas}=1", deadline_s=120)
    llmd.wait(stack, namespace, NAME, "jsonpath={.status.replicas}=1", deadline_s=180)
    assert llmd.condition(stack, namespace, NAME, "Ready")["status"] == "True"
