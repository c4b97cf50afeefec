"""The reconcile loop against a cluster in memory: rolling, scaling, reporting, and silence when nothing changes."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import KEY, MemoryCluster, body
from quire_operator.probe import Samples
from quire_operator.reconcile import Reconciler
from quire_operator.settings import Settings
from quire_operator.spec import Key
from quire_operator.status import Verification
from quire_operator.workqueue import Outcome


class Router:
    """Stands for `Verifier`: answers as told, and counts the questions."""

    def __init__(self) -> None:
        self.answer = Verification("Passed")
        self.asked: list[tuple[int, str]] = []

    def ask(self, key: Key, *, uid: str, generation: int, revision: str, model: str) -> Verification:
        self.asked.append((generation, model))
        return self.answer

    def forget(self, key: Key) -> None:
        pass


class Bench:
    """A reconcile loop with all its surroundings."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.cluster = MemoryCluster(body(spec))
        self.router = Router()
        settings = Settings(runtime_image="quire/runtime:test")
        self.loop = Reconciler(self.cluster, settings, Samples(10), self.router)  # type: ignore[arg-type]

    async def look(self) -> Outcome:
        return await self.loop(KEY)

    async def settle(self, broken: frozenset[str] = frozenset(), rounds: int = 20) -> None:
        for _ in range(rounds):
            await self.look()
            self.cluster.play(broken=broken)
        await self.look()

    def condition(self, kind: str) -> tuple[str, str]:
        found = self.cluster.condition(kind)
        return found["status"], found["reason"]

    def reasons(self) -> list[str]:
        return [event.reason for event in self.cluster.events]


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
    assert list(bench.cluster.sizes().values()) == [3] and old not in bench.cluster.sizes()
    assert bench.condition("Ready") == ("True", "Answering")
    assert bench.cluster.condition("Ready")["observedGeneration"] == 2
    assert {"RevisionRemoved", "RolloutComplete"} <= set(bench.reasons())


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
    assert bench.cluster.sizes() == {old: 2}
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
    assert outcome.again_s == 601
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
