"""ModelCached and RolloutHealthy: what each says, and that it goes on recovery."""

from __future__ import annotations

from typing import Any

import pytest

from reconcile_bench import Bench

HUB = {"source": "hf://org/name"}


def tell(bench: Bench, revision: str, **status: Any) -> None:
    """What the kubelets say of the pods of one revision."""
    for item in bench.cluster.pods.values():
        if item["metadata"]["labels"]["quire.dev/revision"] == revision:
            item["status"] |= status


def fetch(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": "fetch", "state": state, **more}]}


def engine(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "engine", "state": state, **more}]}


def said(bench: Bench, kind: str) -> str:
    return str(bench.cluster.condition(kind)["message"])


# -- ModelCached


async def test_where_nothing_is_downloaded_nothing_is_said() -> None:
    bench = Bench()
    await bench.settle(rounds=4)
    assert "ModelCached" not in {each["type"] for each in bench.cluster.status["conditions"]}


async def test_files_are_waited_for_fetched_and_there() -> None:
    bench = Bench({"model": HUB})
    await bench.look()
    assert bench.condition("ModelCached") == ("Unknown", "NoPods")
    (revision,) = bench.cluster.sizes()
    bench.cluster.play()
    await bench.look()
    assert bench.condition("ModelCached") == ("False", "Waiting")
    tell(bench, revision, **fetch({"running": {}}))
    await bench.look()
    assert bench.condition("ModelCached") == ("False", "Fetching") and bench.condition("Ready")[1] == "Loading"
    (name,) = bench.cluster.pods
    assert said(bench, "ModelCached").startswith(
        f"0 of 1 pods of revision {revision} have the files; `kubectl logs {name} -c fetch`"
    )
    tell(
        bench,
        revision,
        **fetch({"waiting": {}}, lastState={"terminated": {"exitCode": 1, "message": "quire: error: 401: token"}}),
    )
    await bench.look()
    assert bench.condition("ModelCached") == ("False", "FetchFailed") and "401: token" in said(bench, "ModelCached")
    tell(bench, revision, **fetch({"terminated": {"exitCode": 0}}))
    await bench.look()
    assert bench.condition("ModelCached") == ("True", "Fetched") and bench.condition("Available")[0] == "False"
    await bench.settle(rounds=4)
    bench.cluster.edit(replicas=2)
    await bench.look()
    bench.cluster.play()
    await bench.look()
    assert bench.condition("ModelCached")[0] == "False" and "1 of 2" in said(bench, "ModelCached")
    await bench.settle(rounds=4)
    assert bench.condition("ModelCached") == ("True", "Fetched")
    assert [event.reason for event in bench.cluster.events].count("FetchFailed") == 0, "Ready tells it"


async def test_a_model_cache_speaks_for_itself() -> None:
    bench = Bench({"model": {"source": "cache://llama"}})
    await bench.look()
    assert bench.condition("ModelCached") == ("False", "NoModelCache")
    bench.cluster.model_cache = {"metadata": {"name": "llama"}}
    await bench.look()
    assert bench.condition("ModelCached") == ("Unknown", "NotYetReported")
    for status, reason in (("False", "Downloading"), ("False", "DownloadFailed"), ("True", "Filled")):
        ready = {"type": "Ready", "status": status, "reason": reason, "message": "so it is"}
        bench.cluster.model_cache["status"] = {"conditions": [ready]}
        await bench.look()
        assert bench.condition("ModelCached") == (status, reason)
        assert said(bench, "ModelCached") == "ModelCache llama: so it is"


# -- RolloutHealthy


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the operator takes for the time."""
    found = {"now": "2026-01-01T00:00:00Z"}
    monkeypatch.setattr("quire_operator.reconcile._now", lambda: found["now"])
    return found


async def rolling(**rollout: Any) -> tuple[Bench, str]:
    """Two replicas, and the first pod of a candidate."""
    bench = Bench({"replicas": 2, "rollout": rollout})
    await bench.settle(rounds=4)
    assert bench.condition("RolloutHealthy") == ("True", "NoRollout")
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.look()
    (new,) = bench.cluster.sizes().keys() - {old}
    bench.cluster.play(broken=frozenset({new}))
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("True", "RollingOut"), "it loads"
    return bench, new


async def test_a_candidate_that_crashes_is_told_long_before_its_deadline_and_forgiven(clock: dict[str, str]) -> None:
    bench, new = await rolling()
    ended = {"terminated": {"exitCode": 1, "message": "quire: error: no such file"}}
    tell(bench, new, **engine({"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended, restartCount=1))
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("False", "CrashLoopBackOff") and "no such file" in said(
        bench, "RolloutHealthy"
    )
    assert bench.condition("Progressing") == ("True", "RollingOut"), "which has its deadline still"
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": clock["now"]}
    tell(bench, new, conditions=[ready], **engine({"running": {}}, ready=True, lastState=ended, restartCount=1))
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("False", "PodsRestarted"), "it has been ready before, and ended"
    clock["now"] = "2026-01-01T00:02:00Z"
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("True", "RollingOut")
    assert bench.reasons().count("CrashLoopBackOff") == 1, "Ready tells it, and nobody else"


async def test_a_candidate_that_gets_nowhere_is_told_at_its_deadline(clock: dict[str, str]) -> None:
    bench, _ = await rolling(progressDeadline="10m")
    clock["now"] = "2026-01-01T00:10:00Z"
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("False", "ProgressDeadlineExceeded")
    assert said(bench, "RolloutHealthy") == said(bench, "Progressing")


async def test_one_that_is_refused_or_without_room_is_told() -> None:
    bench, new = await rolling()
    no_room = [
        {"type": "PodScheduled", "status": "False", "message": "0/2 nodes"},
        {"type": "Ready", "status": "False"},
    ]
    tell(bench, new, conditions=no_room)
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("False", "Unschedulable")
    bench.cluster.edit(replicas=3)
    bench.cluster.refuse["Deployment"] = "Deployment demo/smol-x is refused by the API server"
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("False", "ApplyFailed")


async def test_pods_that_cannot_be_made_are_told_of_their_own_revision() -> None:
    bench, new = await rolling()
    failed = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}]}
    workloads = {
        item["metadata"]["labels"]["quire.dev/revision"]: item
        for (kind, _), item in bench.cluster.children.items()
        if kind == "Deployment"
    }
    (old,) = workloads.keys() - {new}
    workloads[old]["status"] = failed
    await bench.look()
    assert bench.condition("RolloutHealthy")[0] == "True" and bench.condition("Ready") == ("False", "Loading")
    workloads[old]["status"], workloads[new]["status"] = {}, failed
    await bench.look()
    assert bench.condition("RolloutHealthy") == bench.condition("Ready") == ("False", "FailedCreate")


async def test_an_abort_waits_for_a_person_and_a_pause_is_none(clock: dict[str, str]) -> None:
    bench, _ = await rolling()
    bench.cluster.command("pause")
    await bench.look()
    assert bench.condition("RolloutHealthy") == ("True", "Paused")
    bench.cluster.command("abort")
    await bench.look()
    await bench.settle(rounds=4)
    assert bench.condition("RolloutHealthy") == ("False", "RolloutAborted")
    bench.cluster.edit(engine={})
    await bench.settle(rounds=4)
    assert bench.condition("RolloutHealthy") == ("True", "NoRollout") and bench.condition("Ready")[0] == "True"


async def test_a_pod_that_ends_where_nothing_is_rolled_out_is_no_trouble_of_a_rollout() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle(rounds=4)
    for item in bench.cluster.pods.values():
        item["status"]["conditions"][1]["status"] = "False"
        item["status"] |= engine({"terminated": {"exitCode": 1}}, restartCount=1)
    await bench.look()
    assert bench.condition("Ready") == ("False", "CrashLoopBackOff") and bench.condition("RolloutHealthy")[0] == "True"


# -- kills


async def test_a_container_that_is_killed_again_and_again_is_told_once() -> None:
    """As containerd tells it: of some ends it hears that memory was short, of some it does not, or later."""
    bench = Bench()
    await bench.look()
    (revision,) = bench.cluster.sizes()
    bench.cluster.play(broken=frozenset({revision}))
    short, unknown = {"exitCode": 137, "reason": "OOMKilled"}, {"exitCode": 137, "reason": "Error"}
    backoff = {"waiting": {"reason": "CrashLoopBackOff"}}
    for first, then in ((unknown, short), (unknown, unknown), (short, short), (unknown, short)):
        for told in (
            engine({"terminated": first}),
            engine(backoff, lastState={"terminated": then}),
            engine({"running": {}}, lastState={"terminated": then}),
        ):
            tell(bench, revision, **told)
            await bench.look()
            assert bench.condition("Ready")[1] in ("OOMKilled", "Killed")
    assert bench.reasons() == ["RevisionCreated", "OOMKilled"]
