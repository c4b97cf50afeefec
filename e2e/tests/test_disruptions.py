"""Promise: a client that streams all the time sees no error and no truncated stream, whatever part of the system is replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.handle import Cluster, Event
from stack import llmd, release, rollouts
from stack.load import Load
from stack.prepare import Prepared

pytestmark = [pytest.mark.alone, pytest.mark.timeout(900)]

NAME = "steady"
SYSTEM = ("-n", release.NAMESPACE)
CLIENTS = 3
"""With long answers: of two routers one has two requests at least, and gives them to two pods."""
ANSWER = 128
"""Tokens of an answer: some seconds, so that there are always answers under way when something goes."""
LONG = 640
"""Tokens of an answer that outlasts the 5 s that a pod waits before it is told to end: it has to finish it while it drains."""


@pytest.fixture(scope="module")
def twofold(stack: Cluster, prepared: Prepared) -> Iterator[Cluster]:
    """Two routers and two operators; afterwards the release is as it was."""
    release.install(prepared, "router.replicas=2", "operator.replicas=2")
    yield stack
    release.install(prepared)


@pytest.fixture(scope="module")
def steady(twofold: Cluster, namespace: str) -> str:
    """A model with two pods."""
    llmd.apply(twofold, namespace, llmd.example(NAME, replicas=2, rollout={"drainTimeout": "180s"}))
    llmd.wait_ready(twofold, namespace, NAME)
    return NAME


def pods(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Those that are not on their way out, and the node of each."""
    return {
        pod["metadata"]["name"]: pod["spec"].get("nodeName", "")
        for pod in rollouts.pods(cluster, namespace, NAME)
        if "deletionTimestamp" not in pod["metadata"]
    }


def gone(cluster: Cluster, namespace: str, name: str) -> None:
    cluster.kubectl("wait", f"pod/{name}", "-n", namespace, "--for=delete", "--timeout=180s")


def whole(cluster: Cluster, namespace: str, replicas: int = 2) -> None:
    for field in ("replicas", "readyReplicas"):
        llmd.wait(cluster, namespace, NAME, f"jsonpath={{.status.{field}}}={replicas}", deadline_s=240)


def evict(cluster: Cluster, namespace: str, name: str, scratch: Path) -> None:
    file = scratch / "eviction.json"
    metadata = {"name": name, "namespace": namespace}
    file.write_text(json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}))
    cluster.kubectl("create", "--raw", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", "-f", str(file))


def restarted(cluster: Cluster, part: str) -> None:
    cluster.kubectl("rollout", "restart", f"deployment/quire-{part}", *SYSTEM)
    cluster.kubectl("rollout", "status", f"deployment/quire-{part}", *SYSTEM, "--timeout=240s")


def held_lease(cluster: Cluster, *, other_than: str = "") -> dict[str, Any]:
    """Once somebody holds it. One that ends gives it back, and the next takes it up to two seconds later."""

    def holds(event: Event) -> bool:
        return event.type != "DELETED" and event.object["spec"].get("holderIdentity") not in (None, "", other_than)

    found: dict[str, Any] = cluster.watch("a leader", "lease/quire-operator", *SYSTEM, until=holds, deadline_s=60)[
        "spec"
    ]
    return found


def test_pods_are_evicted(twofold: Cluster, namespace: str, router: str, steady: str, tmp_path: Path) -> None:
    with Load(router, steady, clients=CLIENTS, max_tokens=LONG, to_the_end=True) as load:
        for name in pods(twofold, namespace):
            rollouts.all_answer(twofold, namespace, steady)
            twofold.wait(f"pdb/{steady}", "jsonpath={.status.disruptionsAllowed}=1", namespace=namespace, deadline_s=60)
            evict(twofold, namespace, name, tmp_path)
            gone(twofold, namespace, name)
            whole(twofold, namespace)
    assert load.completed > 0 and load.errors == []


def test_a_node_is_drained(twofold: Cluster, namespace: str, router: str, steady: str) -> None:
    node = min(pods(twofold, namespace).values())
    try:
        with Load(router, steady, clients=CLIENTS, max_tokens=LONG, to_the_end=True) as load:
            rollouts.all_answer(twofold, namespace, steady)
            twofold.kubectl(
                "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=300s", deadline_s=330
            )
            whole(twofold, namespace)
            for part in ("operator", "router"):
                twofold.kubectl("rollout", "status", f"deployment/quire-{part}", *SYSTEM, "--timeout=120s")
        assert load.completed > 0 and load.errors == []
        assert node not in pods(twofold, namespace).values()
    finally:
        twofold.kubectl("uncordon", node)


def test_it_is_scaled_in(twofold: Cluster, namespace: str, router: str, steady: str) -> None:
    with Load(router, steady, clients=CLIENTS, max_tokens=LONG, to_the_end=True) as load:
        rollouts.all_answer(twofold, namespace, steady)
        before = pods(twofold, namespace)
        twofold.kubectl("scale", f"llmd/{steady}", "-n", namespace, "--replicas=1")
        whole(twofold, namespace, 1)
        for name in before.keys() - pods(twofold, namespace).keys():
            gone(twofold, namespace, name)
    assert load.completed > 0 and load.errors == []
    twofold.kubectl("scale", f"llmd/{steady}", "-n", namespace, "--replicas=2")
    whole(twofold, namespace)


def test_routers_are_restarted(twofold: Cluster, router: str, steady: str) -> None:
    with Load(router, steady, clients=4, max_tokens=ANSWER) as load:
        restarted(twofold, "router")
    assert load.completed > 0 and load.errors == []


def test_operators_die_in_the_middle_of_a_rollout(twofold: Cluster, namespace: str, router: str, steady: str) -> None:
    old, before = rollouts.current(twofold, namespace, steady), held_lease(twofold)
    with Load(router, steady, clients=2, max_tokens=ANSWER) as load:
        llmd.patch_spec(twofold, namespace, steady, {"engine": {"maxNumSeqs": 4}})
        rollouts.until(
            twofold, namespace, steady, "the new revision", lambda found: found.get("updatedRevision") != old, deadline_s=60
        )  # fmt: skip
        everyone = ("pods", "-l", "app.kubernetes.io/name=quire-operator", *SYSTEM)
        twofold.kubectl("delete", *everyone, "--grace-period=0", "--force")
        llmd.wait_ready(twofold, namespace, steady)
        restarted(twofold, "operator")
    assert load.completed > 0 and load.errors == []
    after = held_lease(twofold, other_than=before["holderIdentity"])
    assert after["leaseTransitions"] > before["leaseTransitions"]
