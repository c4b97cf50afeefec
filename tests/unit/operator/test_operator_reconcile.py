"""The reconcile loop against a cluster in memory: rolling, scaling, reporting, and silence when nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import KEY
from quire_operator.probe import Samples
from quire_operator.reconcile import Reconciler
from quire_operator.settings import Settings
from quire_operator.status import AdapterReading, Verification
from quire_operator.workqueue import Outcome
from reconcile_bench import Bench, demand


async def test_apply_gives_service_pods_and_at_last_ready() -> None:
    bench = Bench({"replicas": 2})
    await bench.look()
    around = {"ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
    assert {kind for kind, _ in bench.cluster.children} == {"Service", "Deployment", *around}
    assert bench.condition("Ready") == ("False", "Loading")
    assert bench.condition("Available") == ("False", "Loading")
    assert bench.cluster.status["phase"] == "Pending"
    await bench.settle()
    status = bench.cluster.status
    assert bench.condition("Ready") == ("True", "Answering")
    assert bench.condition("Available") == ("True", "ReplicasReady")
    assert bench.condition("Progressing") == ("False", "Complete")
    assert (status["replicas"], status["readyReplicas"], status["summary"]) == (2, 2, "2/2")
    assert status["phase"] == "Ready" and status["observedGeneration"] == 1 and "rollout" not in status
    assert status["selector"] == "quire.dev/deployment=smol,quire.dev/role=leader,quire.dev/track=stable"
    assert bench.router.asked[0] == (1, "demo/smol")
    assert bench.reasons() == ["RevisionCreated", "Ready"]


async def test_a_steady_cluster_sees_no_write() -> None:
    bench = Bench({"replicas": 2, "autoscaling": {"maxReplicas": 3, "targets": {"queueSize": "4"}}})
    await bench.settle()
    bench.cluster.writes.clear()
    bench.cluster.events.clear()
    asked = len(bench.router.asked)
    for _ in range(10):
        await bench.look()
    assert bench.cluster.writes == [] and bench.cluster.events == [] and len(bench.router.asked) == asked


async def test_ready_waits_for_a_completion_through_the_router() -> None:
    bench = Bench()
    bench.router.answer = Verification("Pending")
    await bench.settle()
    assert bench.condition("Ready") == ("False", "Verifying") and bench.condition("Available")[0] == "True"
    bench.router.answer = Verification("Failed", "RouterUnreachable", "the router at http://r cannot be reached")
    await bench.look()
    assert bench.condition("Ready") == ("False", "RouterUnreachable")
    assert "RouterUnreachable" in bench.reasons()
    bench.router.answer = Verification("Passed")
    await bench.look()
    assert bench.condition("Ready") == ("True", "Answering")


async def test_units_are_tended_whatever_else_is_refused() -> None:
    bench = Bench({"engine": {"tensorParallelSize": 2}})
    await bench.look()
    bench.cluster.refuse["Service"] = "a webhook refuses it"
    await bench.look()
    sets = [name for kind, name in bench.cluster.children if kind == "StatefulSet"]
    assert len(sets) == 2 and max(sets) == f"{min(sets)}-0", "the leaders, and the workers of the first unit"
    assert bench.condition("Progressing") == ("False", "ApplyFailed")


async def test_adapters_are_told_without_a_rollout_and_what_is_told_survives_a_restart() -> None:
    bench = Bench()
    await bench.settle()
    assert "AdaptersLoaded" not in {each["type"] for each in bench.cluster.status["conditions"]}
    workloads = dict(bench.cluster.sizes())
    bench.cluster.edit(adapters=[{"name": "support", "source": "file:///a"}])
    await bench.look()
    assert bench.condition("AdaptersLoaded") == ("Unknown", "NotYetAsked")
    bench.adapters = (AdapterReading("support", 0, 1, "NotSupported", "pod p: its engine has no adapters"),)
    for _ in range(3):
        await bench.look()
    assert bench.condition("AdaptersLoaded") == ("False", "NotSupported")
    assert bench.reasons().count("NotSupported") == 1
    bench.adapters = (AdapterReading("support", 1, 1, "Loaded", "all 1 ready pods have it"),)
    await bench.look()
    assert bench.condition("AdaptersLoaded") == ("True", "Loaded")
    assert bench.cluster.status["adapters"] == [{"name": "support", "loaded": 1, "of": 1}]
    bench.cluster.writes.clear()
    bench.adapters = None  # another operator, which has not asked yet
    await bench.look()
    assert bench.cluster.writes == [] and bench.cluster.sizes() == workloads
    assert bench.condition("Ready") == ("True", "Answering")


async def test_an_edit_rolls_to_a_new_revision_and_removes_the_old() -> None:
    bench = Bench({"replicas": 3})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    smallest = 3
    for _ in range(30):
        await bench.look()
        bench.cluster.play()
        ready = [pod for pod in bench.cluster.pods.values() if pod["status"]["conditions"][1]["status"] == "True"]
        smallest = min(smallest, sum("deletionTimestamp" not in pod["metadata"] for pod in ready))
    await bench.look()
    assert smallest == 3, "maxUnavailable is 0"
    assert bench.cluster.sizes().pop(old) == 0, "kept for a way back"
    assert sum(bench.cluster.sizes().values()) == 3
    assert bench.condition("Ready") == ("True", "Answering")
    assert bench.cluster.condition("Ready")["observedGeneration"] == 2
    assert "RolloutComplete" in bench.reasons() and "RevisionRemoved" not in bench.reasons()
    bench.cluster.edit(rollout={"revisionHistoryLimit": 0})
    await bench.settle(rounds=3)
    assert list(bench.cluster.sizes().values()) == [3] and "RevisionRemoved" in bench.reasons()


async def test_during_a_rollout_ready_is_false_and_available_stays_true() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.look()
    assert bench.condition("Ready") == ("False", "Loading")
    assert bench.condition("Available") == ("True", "ReplicasReady")
    assert bench.condition("Progressing") == ("True", "RollingOut")
    assert bench.cluster.status["phase"] == "Progressing"
    assert len(bench.cluster.status["revisions"]) == 2


async def test_a_crashing_candidate_leaves_the_stable_replicas_alone_and_says_why() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.look()
    (new,) = bench.cluster.sizes().keys() - {old}
    crash = {"exitCode": 1, "message": "quire: error: --max-num-seqs is too small"}
    for _ in range(10):
        await bench.look()
        bench.cluster.play(broken=frozenset({new}))
        for pod in bench.cluster.pods.values():
            if pod["metadata"]["labels"]["quire.dev/revision"] == new:
                pod["status"]["containerStatuses"] = [{"name": "engine", "state": {"terminated": crash}}]
    await bench.look()
    assert bench.cluster.sizes() == {old: 2, new: 1}
    assert bench.condition("Ready") == ("False", "CrashLoopBackOff")
    assert "--max-num-seqs is too small" in bench.cluster.condition("Ready")["message"]
    assert bench.condition("Available")[0] == "True"
    assert bench.reasons().count("CrashLoopBackOff") == 1, "one event, not one each look"


async def test_returning_to_the_old_template_reuses_its_workload() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.look()
    bench.cluster.play()
    bench.cluster.edit(engine={})
    await bench.settle()
    assert {name: size for name, size in bench.cluster.sizes().items() if size} == {old: 2}
    assert len(bench.cluster.pods) == 2


async def test_another_operator_process_adopts_what_runs() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    pods = set(bench.cluster.pods)
    bench.cluster.writes.clear()
    fresh = Reconciler(
        bench.cluster,  # type: ignore[arg-type]
        Settings(runtime_image="quire/runtime:test"),
        Samples(10),
        bench.router,  # type: ignore[arg-type]
        demand=demand(Samples(10)),
    )
    await fresh(KEY)
    assert bench.cluster.writes == [] and set(bench.cluster.pods) == pods


async def test_a_restart_while_the_router_is_away_repeats_neither_status_nor_event() -> None:
    bench = Bench()
    bench.router.answer = Verification("Failed", "RouterUnreachable", "the router cannot be reached")
    await bench.settle()
    bench.cluster.writes.clear()
    bench.router.answer = Verification("Pending")
    await bench.look()
    assert bench.cluster.writes == [] and bench.condition("Ready") == ("False", "RouterUnreachable")


async def test_the_autoscaler_owns_the_replicas() -> None:
    scaling = {"minReplicas": 2, "maxReplicas": 5, "targets": {"queueSize": "4"}}
    bench = Bench({"autoscaling": scaling})
    await bench.settle()
    assert bench.cluster.writes.count("scale 2") == 1
    bench.cluster.edit(replicas=4)
    await bench.settle()
    assert list(bench.cluster.sizes().values()) == [4]
    assert bench.cluster.body is not None and bench.cluster.body["spec"]["replicas"] == 4
    assert ("HorizontalPodAutoscaler", "smol") in bench.cluster.children
    del bench.cluster.body["spec"]["autoscaling"]
    bench.cluster.edit()
    await bench.settle()
    assert ("HorizontalPodAutoscaler", "smol") not in bench.cluster.children
    assert list(bench.cluster.sizes().values()) == [4]


async def test_scaling_out_keeps_ready_and_proves_the_new_generation() -> None:
    bench = Bench({"replicas": 1})
    await bench.settle()
    bench.router.answer = Verification("Pending")
    bench.cluster.edit(replicas=3)
    await bench.look()
    assert bench.condition("Ready") == ("True", "Answering")
    assert bench.cluster.condition("Ready")["observedGeneration"] == 1, "not yet proved for this generation"
    assert bench.condition("Progressing") == ("True", "Scaling")
    bench.router.answer = Verification("Passed")
    await bench.settle()
    assert bench.cluster.condition("Ready")["observedGeneration"] == 2


async def test_zero_on_purpose_is_idle_not_failure() -> None:
    bench = Bench({"replicas": 1})
    await bench.settle()
    bench.cluster.edit(replicas=0)
    await bench.settle()
    assert bench.cluster.status["phase"] == "ScaledToZero" and bench.cluster.pods == {}
    assert bench.condition("Available") == ("False", "ScaledToZero")
    bench.cluster.edit(replicas=1)
    await bench.settle()
    assert bench.condition("Ready") == ("True", "Answering")


async def test_refused_children_are_told_and_tried_again() -> None:
    bench = Bench()
    bench.cluster.refuse["Deployment"] = (
        'Deployment demo/smol-x is refused by the API server: unknown field "nodeSelectr"'
    )
    outcome = await bench.look()
    assert outcome.failed
    assert bench.condition("Progressing") == ("False", "ApplyFailed")
    assert "nodeSelectr" in bench.cluster.condition("Ready")["message"]
    assert bench.cluster.status["phase"] == "Failed"
    bench.cluster.refuse.clear()
    await bench.settle()
    assert bench.condition("Ready") == ("True", "Answering")


async def test_a_refused_candidate_does_not_freeze_the_revision_that_serves() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    [(_, old)] = [key for key in bench.cluster.children if key[0] == "Deployment"]
    bench.cluster.refuse["Deployment"] = "Deployment demo/smol-x is refused by the API server"
    bench.cluster.edit(replicas=4, template={"spec": {"nodeSelectr": {"a": "b"}}})
    await bench.settle(rounds=6)
    assert bench.condition("Ready") == ("False", "ApplyFailed")
    assert bench.cluster.children["Deployment", old]["spec"]["replicas"] == 4


async def test_a_refused_candidate_takes_no_pod_of_the_revision_that_serves() -> None:
    bench = Bench({"replicas": 2, "rollout": {"strategy": "Recreate"}})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.refuse["Deployment"] = "Deployment demo/smol-x is refused by the API server"
    bench.cluster.edit(template={"spec": {"nodeSelectr": {"a": "b"}}})
    await bench.settle(rounds=6)
    assert bench.cluster.sizes() == {old: 2} and bench.condition("Available")[0] == "True"
    bench.cluster.edit(replicas=1)
    await bench.settle(rounds=3)
    assert bench.cluster.sizes() == {old: 1}, "who wants fewer gets fewer"
    bench.cluster.refuse.clear()
    await bench.settle()
    assert bench.cluster.sizes()[old] == 0 and bench.condition("Ready") == ("True", "Answering")


async def test_what_the_way_back_needs_is_kept(clock: dict[str, str]) -> None:
    bench = Bench({"replicas": 2, "rollout": {"strategy": "Recreate"}})
    await bench.settle()
    account = ("ServiceAccount", "smol")
    bench.cluster.edit(serviceAccountName="other")
    await bench.look()
    (new,) = (name for name in bench.cluster.status["revisions"] if name["track"] == "candidate")
    await bench.settle(broken=frozenset({new["name"]}), rounds=6)
    assert bench.cluster.sizes()[new["name"]] == 2 and account in bench.cluster.children
    bench.cluster.command("abort")
    await bench.settle(rounds=6)
    bench.cluster.edit(replicas=0)
    await bench.settle(rounds=4)
    assert account in bench.cluster.children, "an abort returns to it, also from zero"
    bench.cluster.command("retry")
    bench.cluster.edit(replicas=2)
    await bench.settle()
    assert account not in bench.cluster.children and bench.condition("Ready") == ("True", "Answering")


async def test_fields_of_another_release_in_the_status_cost_no_memory(clock: dict[str, str]) -> None:
    bench, old, new = await canary()
    bench.cluster.command("abort")
    await bench.look()
    clock["now"] = "2026-01-01T00:10:00Z"
    await bench.settle(rounds=6)
    assert bench.cluster.sizes() == {old: 4, new: 0} and bench.cluster.body is not None
    status = bench.cluster.body["status"]
    status |= {"later": 1, "phase": "Hatching"}
    status["control"]["later"] = {"a": 1}
    status["revisions"][0]["later"] = True
    await bench.settle(rounds=6)
    assert bench.cluster.sizes() == {old: 4, new: 0}, "what was aborted stays so"
    assert bench.cluster.status["phase"] == "Degraded"


async def test_a_spec_that_cannot_be_read_is_told_and_changes_nothing() -> None:
    bench = Bench({"replicas": 1})
    await bench.settle()
    children = dict(bench.cluster.children)
    bench.cluster.edit(surprise=True)
    assert await bench.look() == Outcome()
    assert bench.condition("Ready") == ("False", "InvalidSpec")
    assert "spec.surprise" in bench.cluster.condition("Ready")["message"]
    assert bench.cluster.children == children and bench.cluster.status["observedGeneration"] == 2


async def test_no_progress_until_the_deadline_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": "2026-01-01T00:00:00Z"}
    monkeypatch.setattr("quire_operator.reconcile._now", lambda: clock["now"])
    bench = Bench({"rollout": {"progressDeadline": "10m"}})
    outcome = await bench.look()
    assert outcome.again_s == 600
    clock["now"] = "2026-01-01T00:10:00Z"
    assert (await bench.look()).again_s is None
    assert bench.condition("Progressing") == ("False", "ProgressDeadlineExceeded")
    await bench.look()
    assert bench.reasons().count("ProgressDeadlineExceeded") == 1


async def test_transition_times_move_only_with_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = {"now": "2026-01-01T00:00:00Z"}
    monkeypatch.setattr("quire_operator.reconcile._now", lambda: clock["now"])
    bench = Bench({"replicas": 1})
    await bench.look()
    clock["now"] = "2026-01-01T00:01:00Z"
    bench.cluster.refuse["Service"] = "no"
    await bench.look()
    assert bench.condition("Ready") == ("False", "ApplyFailed")
    assert bench.cluster.condition("Ready")["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    bench.cluster.refuse.clear()
    await bench.settle()
    assert bench.cluster.condition("Ready")["lastTransitionTime"] == "2026-01-01T00:01:00Z"


async def test_pods_that_all_go_turn_available_false_and_it_comes_back_by_itself() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    for pod in bench.cluster.pods.values():
        pod["status"]["conditions"][1]["status"] = "False"
    await bench.look()
    assert bench.condition("Available")[0] == "False" and bench.condition("Ready")[0] == "False"
    await bench.settle()
    assert bench.condition("Available")[0] == "True" and bench.condition("Ready")[0] == "True"


async def test_a_deleted_one_is_forgotten() -> None:
    bench = Bench()
    await bench.settle()
    bench.cluster.body = None
    bench.cluster.writes.clear()
    assert await bench.look() == Outcome()
    assert bench.cluster.writes == [] and bench.cluster.forgotten == [KEY]


# -- rollouts

CANARY = {
    "strategy": "Canary",
    "canary": {"steps": [{"weight": 25, "pause": "10m"}, {"weight": 50, "pause": "indefinite"}]},
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the operator takes for the time."""
    found = {"now": "2026-01-01T00:00:00Z"}
    monkeypatch.setattr("quire_operator.reconcile._now", lambda: found["now"])
    return found


def shares(bench: Bench) -> dict[str, int]:
    return {item["name"]: item["weight"] for item in bench.cluster.status["revisions"]}


async def canary() -> tuple[Bench, str, str]:
    """Four replicas of one revision, and a candidate that stands on its first step."""
    bench = Bench({"replicas": 4, "rollout": CANARY})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.settle(rounds=6)
    (new,) = bench.cluster.sizes().keys() - {old}
    return bench, old, new


async def test_a_canary_shows_in_the_status_and_waits_without_a_write(clock: dict[str, str]) -> None:
    bench, old, new = await canary()
    status = bench.cluster.status
    assert shares(bench) == {new: 25, old: 75} and bench.cluster.sizes() == {old: 4, new: 1}
    assert (status["currentRevision"], status["updatedRevision"]) == (old, new)
    assert [(item["name"], item["track"]) for item in status["revisions"]] == [(new, "candidate"), (old, "stable")]
    assert all(item["model"] == "file:///models/smollm2.gguf" for item in status["revisions"])
    told = status["rollout"]
    assert (told["revision"], told["strategy"], told["step"], told["of"]) == (new, "Canary", 1, 2)
    assert "25 % of the requests" in told["message"] and "for 10m" in told["message"]
    assert bench.condition("Progressing") == ("True", "StepPaused") and bench.condition("Ready") == (
        "False",
        "StepPaused",
    )
    assert bench.condition("Available") == ("True", "ReplicasReady") and status["phase"] == "Progressing"
    assert "TrafficMoved" in bench.reasons()
    bench.cluster.writes.clear()
    clock["now"] = "2026-01-01T00:04:00Z"
    assert (await bench.look()).again_s == 360
    assert bench.cluster.writes == [], "time alone writes nothing"
    clock["now"] = "2026-01-01T00:10:00Z"
    await bench.settle(rounds=6)
    assert bench.cluster.status["rollout"]["step"] == 2 and shares(bench) == {new: 50, old: 50}


async def test_the_candidate_is_told_to_the_router_before_it_has_pods() -> None:
    bench = Bench({"replicas": 2, "rollout": CANARY})
    await bench.settle()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.look()
    assert sorted(bench.cluster.sizes().values()) == [0, 2]
    assert sorted(shares(bench).values()) == [0, 100] and bench.cluster.status["rollout"]["strategy"] == "Canary"


async def test_commands_are_carried_out_and_removed(clock: dict[str, str]) -> None:
    bench, old, new = await canary()
    bench.cluster.command("promote")
    await bench.look()
    assert bench.cluster.body is not None and bench.cluster.body["metadata"]["annotations"] == {}
    assert bench.cluster.writes[-2:] == ["status", "clear promote"], "the effect is written before the cause is removed"
    for minute in range(1, 40):
        clock["now"] = f"2026-01-01T01:{minute:02d}:00Z"
        await bench.look()
        bench.cluster.play()
    await bench.look()
    assert bench.cluster.sizes() == {old: 0, new: 4} and bench.cluster.status["currentRevision"] == new
    assert "control" not in bench.cluster.status and bench.condition("Ready") == ("True", "Answering")
    assert bench.reasons().count("CommandAccepted") == 1


async def test_a_command_that_was_carried_out_is_only_removed(clock: dict[str, str]) -> None:
    bench, _, _ = await canary()
    bench.cluster.command("resume")
    clear = bench.cluster.clear_command

    async def dies(*_: Any) -> None:
        raise ConnectionError

    bench.cluster.clear_command = dies  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await bench.look()
    bench.cluster.clear_command = clear  # type: ignore[method-assign]
    await bench.settle(rounds=6)
    assert bench.cluster.body is not None and bench.cluster.body["metadata"]["annotations"] == {}
    assert bench.cluster.status["rollout"]["step"] == 2, "one step, not two"


async def test_a_senseless_command_is_told_and_removed() -> None:
    bench = Bench({"replicas": 1})
    await bench.settle()
    bench.cluster.command("go")
    await bench.settle(rounds=2)
    assert bench.cluster.body is not None and bench.cluster.body["metadata"]["annotations"] == {}
    (event,) = [event for event in bench.cluster.events if event.reason == "CommandRefused"]
    assert event.kind == "Warning" and "pause, resume, promote, abort, retry" in event.message


async def test_an_abort_is_told_and_holds_until_retry(clock: dict[str, str]) -> None:
    bench, old, new = await canary()
    bench.cluster.command("abort")
    await bench.look()
    assert shares(bench) == {new: 0, old: 100} and bench.cluster.sizes()[new] == 1, "its share goes before its pods"
    clock["now"] = "2026-01-01T00:10:00Z"
    await bench.settle(rounds=6)
    assert bench.cluster.sizes() == {old: 4, new: 0}
    assert bench.condition("Ready") == ("False", "RolloutAborted") and bench.condition("Available")[0] == "True"
    assert bench.condition("Progressing") == ("False", "RolloutAborted") and bench.cluster.status["phase"] == "Degraded"
    assert bench.cluster.status["control"] == {"aborted": new, "why": "the annotation said so"}
    bench.cluster.writes.clear()
    await bench.look()
    assert bench.cluster.writes == []
    bench.cluster.command("retry")
    await bench.settle(rounds=6)
    assert shares(bench) == {new: 25, old: 75} and "control" not in bench.cluster.status


async def test_pause_and_resume(clock: dict[str, str]) -> None:
    bench = Bench({"replicas": 3})
    await bench.settle()
    bench.cluster.command("pause")
    await bench.look()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.settle(rounds=4)
    assert sorted(bench.cluster.sizes().values()) == [0, 3]
    assert bench.condition("Progressing") == ("True", "Paused")
    clock["now"] = "2026-01-02T00:00:00Z"
    await bench.look()
    assert bench.condition("Progressing") == ("True", "Paused"), "a pause has no deadline"
    bench.cluster.command("resume")
    await bench.settle()
    assert bench.condition("Ready") == ("True", "Answering")


async def test_a_crashing_candidate_without_spare_room_gives_it_back() -> None:
    bench = Bench({"replicas": 1, "rollout": {"maxSurge": 0, "maxUnavailable": 1}})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    for _ in range(12):
        await bench.look()
        (new,) = bench.cluster.sizes().keys() - {old}
        bench.cluster.play(broken=frozenset({new}))
        for item in bench.cluster.pods.values():
            if item["metadata"]["labels"]["quire.dev/revision"] == new:
                item["status"]["containerStatuses"] = [{"name": "engine", "restartCount": 3, "state": {}}]
    await bench.look()
    assert bench.cluster.sizes() == {old: 1, new: 0}
    assert bench.condition("Ready") == ("False", "RolloutAborted")
    assert "maxSurge 0" in bench.cluster.condition("Ready")["message"]


async def test_an_upgraded_operator_restarts_nothing_and_the_next_edit_takes_its_image() -> None:
    bench = Bench({"replicas": 2})
    await bench.settle()
    (old,) = bench.cluster.sizes()
    before = set(bench.cluster.pods)
    bench.cluster.writes.clear()
    bench.loop = Reconciler(
        bench.cluster,  # type: ignore[arg-type]
        Settings(runtime_image="quire/runtime:next"),
        Samples(10),
        bench.router,  # type: ignore[arg-type]
        demand=demand(Samples(10)),
    )
    await bench.settle(rounds=4)
    assert set(bench.cluster.pods) == before and bench.cluster.writes == []
    bench.cluster.edit(replicas=3)
    await bench.settle(rounds=4)
    assert bench.cluster.sizes() == {old: 3}, "scaled as it is"
    bench.cluster.edit(engine={"maxNumSeqs": 8})
    await bench.settle()
    (new,) = (name for name, size in bench.cluster.sizes().items() if size)
    template = bench.cluster.children["Deployment", f"smol-{new}"]["spec"]["template"]
    assert new != old and template["spec"]["containers"][0]["image"] == "quire/runtime:next"
    bench.cluster.edit(engine={})
    await bench.settle()
    assert {name: size for name, size in bench.cluster.sizes().items() if size} == {old: 3}, "the very same pods again"


async def test_a_workload_of_the_release_before_is_marked_and_not_rolled() -> None:
    bench = Bench({"replicas": 1})
    await bench.settle()
    ((key, workload),) = [(key, item) for key, item in bench.cluster.children.items() if key[0] == "Deployment"]
    template, pods = workload["spec"]["template"], set(bench.cluster.pods)
    workload["metadata"]["annotations"] = {}
    bench.cluster.body["status"].pop("currentRevision")  # type: ignore[index]
    await bench.settle(rounds=3)
    marked = bench.cluster.children[key]
    assert marked["metadata"]["annotations"]["quire.dev/spec-hash"]
    assert marked["spec"]["template"] == template and set(bench.cluster.pods) == pods


async def test_one_that_does_not_lead_knows_the_pods_and_writes_nothing() -> None:
    bench, samples = Bench({"replicas": 2}), Samples(10)
    await bench.settle()
    bench.cluster.writes.clear()
    settings = Settings(runtime_image="quire/runtime:test")
    second = Reconciler(bench.cluster, settings, samples, bench.router, demand=demand(samples))  # type: ignore[arg-type]
    assert await second.follow(KEY) == Outcome()
    assert samples.keys() == (KEY,) and len(samples.targets()) == 2
    bench.cluster.edit(replicas=5)
    await second.follow(KEY)
    assert bench.cluster.writes == []
    bench.cluster.body = None
    await second.follow(KEY)
    assert samples.keys() == ()
