"""Promise: a replica of several pods comes whole, answers by its leader alone, begins anew as one when a pod fails, and leaves nothing.

The engine takes no parallel sizes yet and ends at once with them. `template` gives each pod the engine without these flags, so that the pods
run, and each has a model of its own: what is tested is what the operator makes of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx
import pytest

from cluster import wait
from cluster.handle import Cluster
from stack import llmd, rollouts

pytestmark = pytest.mark.timeout(600)

NAME = "united"
ROLE = "quire.dev/role"
ARGS = (
    "serve", "/models/smollm2.gguf", f"--served-model-name={NAME}", "--host=0.0.0.0", "--port=8000", "--drain-timeout=0",
    "--kv-cache-memory=64Mi", "--max-model-len=512", "--max-num-seqs=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def before(stack: Cluster, namespace: str) -> set[str]:
    """What a namespace has of itself."""
    for standard in ("serviceaccount/default", "configmap/kube-root-ca.crt"):
        stack.wait(standard, "create", namespace=namespace, deadline_s=60)
    return llmd.everything(stack, namespace)


@pytest.fixture(scope="module")
def unit(stack: Cluster, namespace: str, before: set[str]) -> dict[str, dict[str, Any]]:
    """The pods of the one replica, by role."""
    manifest = llmd.example(
        NAME,
        engine={"tensorParallelSize": 2},
        resources={"requests": {"cpu": "100m", "memory": "300Mi"}},
        rollout={"drainTimeout": "0s"},
        template={"spec": {"containers": [{"name": "engine", "args": list(ARGS)}]}},
    )
    llmd.apply(stack, namespace, manifest)
    llmd.wait_ready(stack, namespace, NAME)
    return by_role(stack, namespace)


def by_role(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Those that are not on their way out."""
    found = rollouts.pods(cluster, namespace, NAME)
    return {pod["metadata"]["labels"][ROLE]: pod for pod in found if "deletionTimestamp" not in pod["metadata"]}


def uids(unit: dict[str, dict[str, Any]]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in unit.values()}


def ready_at(pod: dict[str, Any]) -> datetime:
    told = next(each for each in pod["status"]["conditions"] if each["type"] == "Ready")
    assert told["status"] == "True", pod["metadata"]["name"]
    return datetime.fromisoformat(told["lastTransitionTime"])


def test_a_unit_is_ready_when_all_its_pods_are_and_counts_as_one(
    stack: Cluster, namespace: str, unit: dict[str, dict[str, Any]]
) -> None:
    leader, worker = unit["leader"], unit["worker"]
    assert ready_at(leader) >= ready_at(worker)
    told = [
        {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]} for pod in (leader, worker)
    ]
    address = f"{leader['metadata']['name']}.{NAME}-units.{namespace}"
    assert told[1]["LWS_LEADER_ADDRESS"] == address and told[0]["LWS_GROUP_SIZE"] == told[1]["LWS_GROUP_SIZE"] == "2"
    found = rollouts.status(stack, namespace, NAME)
    assert (found["replicas"], found["readyReplicas"], found["summary"]) == (1, 1, "1/1")


def test_the_worker_finds_the_leader_by_its_name(
    stack: Cluster, namespace: str, unit: dict[str, dict[str, Any]]
) -> None:
    look = "import os, socket; print(socket.gethostbyname(os.environ['LWS_LEADER_ADDRESS']))"
    name = unit["worker"]["metadata"]["name"]
    found = stack.kubectl("exec", name, "-n", namespace, "-c", "engine", "--", "python", "-c", look)
    assert found.strip() == unit["leader"]["status"]["podIP"]


def test_requests_reach_the_leader_alone(
    stack: Cluster, namespace: str, router: str, unit: dict[str, dict[str, Any]]
) -> None:
    with httpx.Client(base_url=router, timeout=60, trust_env=False) as client:
        for _ in range(20):
            client.post("/v1/completions", json={"model": NAME, "prompt": "One", "max_tokens": 1}).raise_for_status()
    answered = rollouts.answered(stack, namespace, NAME, by=ROLE)
    assert answered["leader"] >= 20 and answered["worker"] == 0, answered


def test_a_unit_that_loses_a_pod_begins_anew_as_one(
    stack: Cluster, namespace: str, unit: dict[str, dict[str, Any]]
) -> None:
    stack.kubectl("delete", f"pod/{unit['worker']['metadata']['name']}", "-n", namespace, "--wait=false")

    def mixed() -> str | None:
        now = by_role(stack, namespace)
        left = uids(now) & uids(unit)
        return f"{sorted(now)}, {len(left)} of them old" if left or len(now) < 2 else None

    wait.until("a unit of new pods alone", mixed, deadline_s=180, interval_s=0.5)
    stack.wait(f"pod/{unit['leader']['metadata']['name']}", "condition=Ready", namespace=namespace, deadline_s=180)
    llmd.wait_ready(stack, namespace, NAME)
    again = by_role(stack, namespace)
    assert ready_at(again["leader"]) >= ready_at(again["worker"])
    assert rollouts.events(stack, namespace, NAME).count(("Warning", "UnitRestarted")) == 1


def test_deletion_leaves_nothing_of_a_unit(
    stack: Cluster, namespace: str, before: set[str], unit: dict[str, dict[str, Any]]
) -> None:
    kinds = {name.partition("/")[0] for name in llmd.everything(stack, namespace) - before}
    assert {"statefulset.apps", "pod", "service"} <= kinds
    stack.kubectl("delete", f"llmd/{NAME}", "-n", namespace, "--wait=true", "--timeout=60s")

    def left() -> str | None:
        return " ".join(sorted(llmd.everything(stack, namespace) - before)) or None

    wait.until("everything of the unit goes", left, deadline_s=120, interval_s=1)
