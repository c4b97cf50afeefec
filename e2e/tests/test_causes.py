"""Promise: why a model is not ready stands in its condition and in one Event, with the remedy, and goes when that is done."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts

pytestmark = pytest.mark.timeout(600)

NOWHERE = "127.0.0.1:1"
"""Port 1 of the node, or of the pod, itself: refused at once, and nothing leaves the machine. The local cluster has no registry."""
SMALL: dict[str, Any] = {
    "engine": {"maxModelLen": 512, "maxNumSeqs": 2, "kvCacheMemory": "64Mi"},
    "resources": {"requests": {"cpu": "50m", "memory": "200Mi"}},
    "rollout": {"drainTimeout": "5s"},
}
"""Of each: all are there at once, and while they are mended each has two pods."""


@dataclass(frozen=True)
class Cause:
    """What is broken, and what the condition Ready says of it."""

    name: str
    change: dict[str, Any]
    reason: str
    said: tuple[str, ...]


CAUSES = (
    Cause(
        "unschedulable",
        {"template": {"spec": {"nodeSelector": {"e2e.quire.dev/nobody": "has-this"}}}},
        "Unschedulable",
        ("node affinity/selector", "change spec.resources or spec.template"),
    ),
    Cause(
        "no-image",
        {"image": f"{NOWHERE}/quire/none:1"},
        "ImagePullBackOff",
        (f"{NOWHERE}/quire/none:1", "check its name, the registry and spec.imagePullSecrets"),
    ),
    Cause(
        "init-error",
        {"model": {"source": f"http://{NOWHERE}/nothing.gguf", "download": {"attempts": 1}}},
        "CrashLoopBackOff",
        ("init container fetch", "exit code 1", "nothing.gguf", "Connection refused"),
    ),
    Cause(
        "exit-code",
        {"model": {"source": "file:///models/nothing.gguf"}},
        "CrashLoopBackOff",
        ("container engine", "exit code 1", "/models/nothing.gguf"),
    ),
    Cause(
        "out-of-memory",
        {"resources": {**SMALL["resources"], "requests": {"cpu": "50m"}, "limits": {"memory": "64Mi"}}},
        "OOMKilled",
        ("container engine", "raise spec.resources.limits.memory"),
    ),
)

REASONS = {cause.reason for cause in CAUSES}

every_cause = pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)


@pytest.fixture(scope="module")
def broken(stack: Cluster, namespace: str) -> None:
    """One model of each cause, all at once: what takes long about them is waiting."""
    stack.apply(*(llmd.example(cause.name, **(SMALL | cause.change)) for cause in CAUSES), namespace=namespace)


@pytest.fixture(scope="module")
def mended(stack: Cluster, namespace: str, broken: None) -> None:
    """Each once its cause was told."""
    for cause in CAUSES:
        told(stack, namespace, cause)
    stack.apply(*(llmd.example(cause.name, **SMALL) for cause in CAUSES), namespace=namespace)


def told(cluster: Cluster, namespace: str, cause: Cause) -> dict[str, Any]:
    """The status that tells it."""
    return rollouts.until(
        cluster, namespace, cause.name, f"the reason {cause.reason}",
        lambda found: rollouts.reason(found, "Ready") == cause.reason, deadline_s=180,
    )  # fmt: skip


@every_cause
def test_the_condition_names_the_cause_and_the_remedy(
    stack: Cluster, namespace: str, broken: None, cause: Cause
) -> None:
    found = told(stack, namespace, cause)
    ready, available = (
        next(each for each in found["conditions"] if each["type"] == kind) for kind in ("Ready", "Available")
    )
    assert ready["status"] == available["status"] == "False"
    assert [words for words in cause.said if words not in ready["message"]] == [], ready["message"]
    assert available["reason"] == cause.reason
    assert found["phase"] == ("Pending" if cause.reason == "Unschedulable" else "Failed")


@every_cause
def test_it_is_told_once_and_gone_when_it_is_mended(stack: Cluster, namespace: str, mended: None, cause: Cause) -> None:
    llmd.wait_ready(stack, namespace, cause.name)
    found = rollouts.status(stack, namespace, cause.name)
    assert not [each for each in found["conditions"] if cause.reason in (each["reason"], *each["message"].split())]
    told = Counter(
        (reason, *re.findall(rf"pod {cause.name}-(\w+)-", message))
        for reason, message in rollouts.messages(stack, namespace, cause.name)
        if reason in REASONS
    )
    assert {reason for reason, *_ in told} == {cause.reason} and set(told.values()) == {1}, "once of each revision"
    stack.kubectl("delete", f"llmd/{cause.name}", "-n", namespace, "--wait=true", "--timeout=60s")
