"""Promise: every strategy moves requests as it says, people can stop it and take it back, and a streaming client sees no error."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from cluster.errors import CommandError
from cluster.handle import Cluster
from stack import llmd, rollouts
from stack.load import Load

pytestmark = pytest.mark.timeout(900)

CANARY = {"strategy": "Canary", "canary": {"steps": [{"weight": 30, "pause": "indefinite"}]}, "drainTimeout": "20s"}
BLUE_GREEN = {
    "strategy": "BlueGreen",
    "blueGreen": {"pause": "indefinite", "scaleDownDelay": "5s"},
    "drainTimeout": "20s",
}


def deploy(stack: Cluster, namespace: str, name: str, rollout: dict[str, Any], *, replicas: int = 1) -> str:
    """A model that is Ready; returns its revision."""
    llmd.apply(stack, namespace, llmd.example(name, replicas=replicas, rollout=rollout))
    llmd.wait_ready(stack, namespace, name)
    return rollouts.current(stack, namespace, name)


def edit(stack: Cluster, namespace: str, name: str, seqs: int) -> None:
    llmd.patch_spec(stack, namespace, name, {"engine": {"maxNumSeqs": seqs}})


def waiting(found: dict[str, Any]) -> bool:
    return rollouts.reason(found, "Progressing") == "StepPaused"


def remove(stack: Cluster, namespace: str, name: str) -> None:
    stack.kubectl("delete", f"llmd/{name}", "-n", namespace, "--wait=true", "--timeout=60s")


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"strategy": "Canary"}, "canary.steps"),
        ({"strategy": "Canary", "canary": {"steps": []}}, "steps"),
        ({"strategy": "Canary", "canary": {"steps": [{"weight": 50}, {"weight": 20}]}}, "must rise"),
        ({"strategy": "Canary", "canary": {"steps": [{"weight": 50}, {"weight": 50}]}}, "must rise"),
        ({"strategy": "Canary", "canary": {"steps": [{"weight": 5, "pause": "soon"}]}}, "or indefinite"),
        ({"strategy": "Canary", "canary": {"steps": [{"weight": 5, "pause": "200h"}]}}, "or indefinite"),
        ({"strategy": "Canary", "canary": {"steps": [{"weight": 101}]}}, "100"),
        ({"strategy": "Blue"}, "strategy"),
    ],
)
def test_a_senseless_strategy_is_refused(stack: Cluster, namespace: str, rollout: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        llmd.apply(stack, namespace, llmd.example("bad", rollout=rollout))


def test_canary_gives_the_candidate_its_share_and_ends_by_promote(stack: Cluster, namespace: str, router: str) -> None:
    name = "canary"
    old = deploy(stack, namespace, name, CANARY)
    with Load(router, name, clients=1, max_tokens=16) as load:
        edit(stack, namespace, name, 4)
        found = rollouts.until(stack, namespace, name, "the first step", waiting, deadline_s=180)
        new = found["updatedRevision"]
        assert rollouts.shares(found) == {new: 30, old: 70} and found["currentRevision"] == old

        before = rollouts.answered(stack, namespace, name)
        with httpx.Client(base_url=router, timeout=60, trust_env=False) as client:
            for _ in range(200):
                asked = {"model": name, "prompt": "One", "max_tokens": 1, "temperature": 0}
                client.post("/v1/completions", json=asked).raise_for_status()
        counted = rollouts.answered(stack, namespace, name) - before
        assert sum(counted.values()) >= 200
        assert abs(counted[new] / sum(counted.values()) - 0.30) < 0.12, counted  # 0.12: some 3.7 deviations

        rollouts.command(stack, namespace, name, "promote")
        llmd.wait_ready(stack, namespace, name)
    assert load.completed > 0 and load.errors == []
    after = llmd.get(stack, namespace, name)
    assert after["status"]["currentRevision"] == new and rollouts.shares(after["status"])[new] == 100
    assert "quire.dev/rollout" not in after["metadata"].get("annotations", {})
    remove(stack, namespace, name)


def test_abort_takes_the_requests_back_before_the_pods_and_retry_goes_on(
    stack: Cluster, namespace: str, router: str
) -> None:
    name = "aborted"
    old = deploy(stack, namespace, name, CANARY)
    untouched = rollouts.identities(stack, namespace, name)
    with Load(router, name, clients=1, max_tokens=32) as load:
        edit(stack, namespace, name, 4)
        new = rollouts.until(stack, namespace, name, "the first step", waiting, deadline_s=180)["updatedRevision"]
        rollouts.command(stack, namespace, name, "abort")
        back = rollouts.until(
            stack, namespace, name, "all requests at the old revision",
            lambda found: rollouts.shares(found).get(old) == 100, deadline_s=30,
        )  # fmt: skip
        assert rollouts.shares(back)[new] == 0
        found = rollouts.until(
            stack, namespace, name, "the end of the abort",
            lambda found: rollouts.reason(found, "Progressing") == "RolloutAborted", deadline_s=120,
        )  # fmt: skip
    assert load.completed > 0 and load.errors == []
    assert rollouts.reason(found, "Ready") == "RolloutAborted" and found["control"]["aborted"] == new
    stack.wait(f"deployment/{name}-{new}", "jsonpath={.spec.replicas}=0", namespace=namespace, deadline_s=30)
    assert untouched <= rollouts.identities(stack, namespace, name), "the old pod was not touched"

    rollouts.command(stack, namespace, name, "retry")
    rollouts.until(stack, namespace, name, "the first step again", waiting, deadline_s=180)
    rollouts.command(stack, namespace, name, "resume")
    llmd.wait_ready(stack, namespace, name)
    assert rollouts.current(stack, namespace, name) == new
    remove(stack, namespace, name)


def test_blue_green_moves_everything_at_once(stack: Cluster, namespace: str, router: str) -> None:
    name = "bluegreen"
    old = deploy(stack, namespace, name, BLUE_GREEN, replicas=2)
    seen: list[dict[str, int]] = []
    with Load(router, name, clients=2, max_tokens=24) as load:
        edit(stack, namespace, name, 4)
        found = rollouts.until(stack, namespace, name, "the whole new set", waiting, deadline_s=240)
        new = found["updatedRevision"]
        assert {item["name"]: (item["ready"], item["weight"]) for item in found["revisions"]} == {
            new: (2, 0),
            old: (2, 100),
        }

        def switched(found: dict[str, Any]) -> bool:
            seen.append(rollouts.shares(found))
            return seen[-1].get(new) == 100

        rollouts.command(stack, namespace, name, "resume")
        rollouts.until(stack, namespace, name, "the switch", switched, deadline_s=60)
        llmd.wait_ready(stack, namespace, name)
    assert load.completed > 0 and load.errors == []
    assert all(set(each.values()) <= {0, 100} for each in seen), seen
    stack.wait(f"deployment/{name}-{old}", "jsonpath={.spec.replicas}=0", namespace=namespace, deadline_s=60)
    remove(stack, namespace, name)


def test_recreate_never_runs_two_revisions(stack: Cluster, namespace: str) -> None:
    name = "recreate"
    old = deploy(stack, namespace, name, {"strategy": "Recreate", "drainTimeout": "5s"})
    edit(stack, namespace, name, 4)
    new = rollouts.until(
        stack, namespace, name, "the new revision", lambda found: found.get("updatedRevision") != old, deadline_s=30
    )["updatedRevision"]
    stack.wait(f"deployment/{name}-{new}", "jsonpath={.spec.replicas}=1", namespace=namespace, deadline_s=120)
    # A pod whose containers have ended may still be listed for a moment.
    left = [
        pod for pod in rollouts.pods(stack, namespace, name) if pod["status"]["phase"] not in ("Succeeded", "Failed")
    ]
    assert {pod["metadata"]["labels"]["quire.dev/revision"] for pod in left} <= {new}
    llmd.wait_ready(stack, namespace, name)
    remove(stack, namespace, name)


def test_a_candidate_that_crashes_is_superseded_by_the_next_edit(stack: Cluster, namespace: str, router: str) -> None:
    name = "crashes"
    old = deploy(stack, namespace, name, {"maxSurge": 1})
    untouched = rollouts.identities(stack, namespace, name)
    with Load(router, name, clients=1, max_tokens=24) as load:
        llmd.patch_spec(stack, namespace, name, {"model": {"source": "file:///models/nothing.gguf"}})
        found = rollouts.until(
            stack, namespace, name, "the crash in the condition",
            lambda found: rollouts.reason(found, "Ready") == "CrashLoopBackOff", deadline_s=120,
        )  # fmt: skip
        crashing = found["updatedRevision"]
        assert rollouts.shares(found) == {crashing: 0, old: 100}
        assert rollouts.reason(found, "Available") == "ReplicasReady"
        assert untouched <= rollouts.identities(stack, namespace, name)
        llmd.patch_spec(
            stack, namespace, name, {"model": {"source": "file:///models/smollm2.gguf"}, "engine": {"maxNumSeqs": 6}}
        )
        llmd.wait_ready(stack, namespace, name)
    assert load.completed > 0 and load.errors == []
    assert rollouts.current(stack, namespace, name) not in (old, crashing)
    remove(stack, namespace, name)


def test_without_spare_room_a_crashing_candidate_gives_it_back(stack: Cluster, namespace: str) -> None:
    name = "noroom"
    old = deploy(
        stack, namespace, name,
        {"maxSurge": 0, "maxUnavailable": 1, "progressDeadline": "30s", "drainTimeout": "5s"},
    )  # fmt: skip
    llmd.patch_spec(stack, namespace, name, {"model": {"source": "file:///models/nothing.gguf"}})
    found = rollouts.until(
        stack, namespace, name, "the old revision is back",
        lambda found: rollouts.reason(found, "Progressing") == "RolloutAborted", deadline_s=240,
    )  # fmt: skip
    assert rollouts.shares(found)[old] == 100 and found["currentRevision"] == old
    assert "maxSurge 0" in llmd.condition(stack, namespace, name, "Ready")["message"]
    remove(stack, namespace, name)


def test_a_revert_during_a_rollout_touches_no_old_pod(stack: Cluster, namespace: str) -> None:
    name = "reverted"
    old = deploy(stack, namespace, name, BLUE_GREEN)
    untouched = rollouts.identities(stack, namespace, name)
    before = llmd.get(stack, namespace, name)["spec"]["engine"]["maxNumSeqs"]
    edit(stack, namespace, name, 4)
    rollouts.until(stack, namespace, name, "the whole new set", waiting, deadline_s=180)
    edit(stack, namespace, name, before)
    llmd.wait_ready(stack, namespace, name)
    assert rollouts.current(stack, namespace, name) == old
    rollouts.until(
        stack,
        namespace,
        name,
        "the end",
        lambda found: rollouts.reason(found, "Progressing") == "Complete",
        deadline_s=90,
    )
    assert untouched <= rollouts.identities(stack, namespace, name)
    remove(stack, namespace, name)
