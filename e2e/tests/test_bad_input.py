"""Promise: a mistake is refused with a sentence that names it, or shown in a condition; nothing hangs."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import CommandError
from cluster.handle import Cluster
from stack import llmd


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"engine": {"maxNumSeq": 8}}, "maxNumSeq"),
        ({"engine": {"maxNumSeqs": 0}}, "spec.engine.maxNumSeqs"),
        ({"engine": {"kvCacheDtype": "int3"}}, "spec.engine.kvCacheDtype"),
        ({"replicas": -1}, "spec.replicas"),
        ({"replicas": 1, "autoscaling": {"maxReplicas": 2, "targets": {"queueSize": "2"}}}, "autoscaling"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, "maxSurge"),
        ({"model": {"source": "smollm2"}}, "spec.model.source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_apply_refuses_and_names_the_field(stack: Cluster, namespace: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(CommandError, match=named):
        llmd.apply(stack, namespace, llmd.example("bad", **change))
    assert "bad" not in stack.kubectl("get", "llmd", "-n", namespace, "-o", "name")


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("no-model", {"model": {"source": "file:///models/nothing.gguf"}}, "/models/nothing.gguf"),
        ("no-room", {"engine": {"kvCacheMemory": "900Gi"}}, "900"),
        ("bad-flag", {"engine": {"extraArgs": ["--no-such-flag=1"]}}, "--no-such-flag"),
    ],
)
def test_a_start_that_fails_reaches_the_condition(
    stack: Cluster, namespace: str, name: str, change: dict[str, Any], said: str
) -> None:
    llmd.apply(stack, namespace, llmd.example(name, **change))
    llmd.wait(stack, namespace, name, "jsonpath={.status.phase}=Failed", deadline_s=120)
    ready = llmd.condition(stack, namespace, name, "Ready")
    assert ready["status"] == "False"
    assert said in ready["message"], ready
    stack.kubectl("delete", f"llmd/{name}", "-n", namespace, "--wait=true", "--timeout=60s")
