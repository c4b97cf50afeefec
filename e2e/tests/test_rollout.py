"""Promise: an edit rolls to a new revision, and a client that streams all the time sees no error."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.handle import Cluster
from stack import llmd, rollouts
from stack.load import Load

NAME = "rolling"


def revisions(cluster: Cluster, namespace: str) -> set[str]:
    found: dict[str, Any] = cluster.kubectl_json(
        "get", "deployments", "-n", namespace, "-l", f"quire.dev/deployment={NAME}"
    )
    return {item["metadata"]["labels"]["quire.dev/revision"] for item in found["items"] if item["spec"]["replicas"]}


@pytest.mark.timeout(600)
def test_an_edit_rolls_to_a_new_revision_without_an_error(stack: Cluster, namespace: str, router: str) -> None:
    llmd.apply(stack, namespace, llmd.example(NAME))
    llmd.wait_ready(stack, namespace, NAME)
    [old] = revisions(stack, namespace)

    with Load(router, NAME, clients=2, max_tokens=48) as load:
        llmd.patch_spec(stack, namespace, NAME, {"engine": {"maxNumSeqs": 4}})
        llmd.wait_ready(stack, namespace, NAME)
        llmd.wait(stack, namespace, NAME, "condition=Progressing=False", deadline_s=180)
        stack.wait(f"deployment/{NAME}-{old}", "jsonpath={.spec.replicas}=0", namespace=namespace, deadline_s=180)
    assert load.completed > 0 and load.errors == []

    [new] = revisions(stack, namespace)
    assert new != old
    pods = stack.kubectl_json("get", "pods", "-n", namespace, "-l", f"quire.dev/revision={new}")["items"]
    assert "--max-num-seqs=4" in pods[0]["spec"]["containers"][0]["args"]

    def told(status: dict[str, Any]) -> bool:
        return [(each["name"], each["ready"]) for each in status["revisions"]] == [(new, 1)]

    # A revision is told of until its last pod is gone, which answers first what it has.
    rollouts.until(stack, namespace, NAME, "the old revision to be gone", told, deadline_s=180)


def test_an_edit_that_changes_no_pod_rolls_nothing(stack: Cluster, namespace: str) -> None:
    before = revisions(stack, namespace)
    stack.kubectl("annotate", f"llmd/{NAME}", "-n", namespace, "example.com/note=hello")
    llmd.patch_spec(stack, namespace, NAME, {"rollout": {"progressDeadline": "20m"}})
    llmd.wait_ready(stack, namespace, NAME)
    assert revisions(stack, namespace) == before
