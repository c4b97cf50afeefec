"""Units of pods, a leader and its workers: decided with simulated time, and kept by the real StatefulSet controller on a real API server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.progress import Progress
from cluster.tools import KUBERNETES, ensure
from cluster.wait import until
from leader_worker_sets import definition
from operator_kit import DEFAULTS, body, owner, workloads
from operator_process import GROUP, OperatorProcess, operator_process
from quire_operator import labels
from quire_operator.api.llmdeployment import NAME_MAX
from quire_operator.observation import PodView, pod_view
from quire_operator.plugin.config import Flags
from quire_operator.plugin.history import history_of
from quire_operator.plugin.reach import Reach
from quire_operator.policy.units import MOST_S, WELL_S, Unit, UnitPlan, UnitState, plan_unit
from quire_operator.resources import build_pod_template, build_supplies, build_workload
from quire_operator.resources.units import build_workers, unit_workers_name
from quire_operator.spec import parse
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

SPEC: dict[str, Any] = {"engine": {"tensorParallelSize": 3}}
NOW = 1_000_000.0


# -- decisions


def member(uid: str, *, leader: bool = False, ready: bool = True, restarts: int = 0, gone: bool = False) -> PodView:
    conditions = [{"type": kind, "status": str(ready)} for kind in ("Ready", "ContainersReady")]
    metadata: dict[str, Any] = {"name": uid, "namespace": "n", "uid": uid}
    metadata["labels"] = {labels.ROLE: labels.LEADER if leader else labels.WORKER, labels.UNIT: "0"}
    if gone:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    engine = {"name": "engine", "restartCount": restarts, "state": {}}
    return pod_view({"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [engine]}})


LEADER, ONE, TWO = member("l", leader=True), member("w1"), member("w2")
WHOLE = UnitState(("l", "w1", "w2"))


def unit(*workers: PodView, leader: PodView | None = LEADER, state: UnitState | None = WHOLE, **more: Any) -> Unit:
    return Unit(0, 3, leader, workers, state, **more)


def test_a_unit_is_one_when_all_are_there_and_ready_when_all_are() -> None:
    assert plan_unit(unit(leader=None, state=None), NOW).create
    forming = UnitState()
    assert plan_unit(unit(ONE, state=forming), NOW) == UnitPlan(ready=False)
    plan = plan_unit(unit(ONE, member("w2", ready=False), state=forming), NOW)
    assert plan.state == WHOLE and plan.ready is False
    assert plan_unit(unit(ONE, TWO), NOW) == UnitPlan(ready=True)
    assert plan_unit(unit(ONE, TWO, leader=member("l", leader=True, ready=False)), NOW).ready is False


@pytest.mark.parametrize(
    "broken",
    [
        unit(ONE, member("w2", restarts=1)),
        unit(ONE, member("w3")),
        unit(ONE),
        unit(ONE, member("w2", gone=True)),
        unit(ONE, TWO, leader=None),
        unit(ONE, TWO, leader=member("other", leader=True)),
    ],
    ids=["restarted", "replaced", "missing", "leaving", "no leader", "another leader"],
)
def test_when_one_fails_all_go_and_what_was_written_down_says_so_first(broken: Unit) -> None:
    plan = plan_unit(broken, NOW)
    pods = [*broken.workers, *((broken.leader,) if broken.leader else ())]
    assert plan.state is not None and plan.state.breaking and plan.state.restarts == 1 and plan.ready is False
    assert set(plan.delete) == {pod.name for pod in pods if not pod.terminating}
    assert set(plan.state.members) >= {"l", "w1", "w2"}, "an operator that dies now knows whom to delete"
    again = plan_unit(replace(broken, state=plan.state), NOW)
    assert set(again.delete) == set(plan.delete) and again.state is None
    fresh = replace(broken, leader=None, workers=(), state=plan.state)
    assert plan_unit(fresh, NOW).state == UnitState(restarts=1, at=NOW)


def test_a_unit_that_keeps_failing_begins_anew_more_and_more_seldom() -> None:
    state, waits = WHOLE, []
    for _ in range(8):
        broken = unit(ONE, member("w2", restarts=1), state=state)
        left = plan_unit(broken, state.at).again_s
        waits.append(left or 0.0)
        assert plan_unit(broken, state.at + (left or 0.0) - 0.1).delete == () or left is None
        after = plan_unit(broken, state.at + (left or NOW)).state
        assert after is not None and after.breaking
        state = replace(after, members=("l", "w1", "w2"), breaking=False)
    assert waits == [0.0, 10.0, 20.0, 40.0, 80.0, 160.0, MOST_S, MOST_S]
    well = plan_unit(unit(ONE, TWO, state=state), state.at + WELL_S)
    assert well.ready and well.state == replace(state, restarts=0)
    assert plan_unit(unit(ONE, TWO, state=state), state.at + WELL_S - 5.0).again_s == 5.0


def test_a_clock_that_was_ahead_holds_no_unit_up() -> None:
    state = replace(WHOLE, restarts=1, at=NOW + 3600.0)
    broken = unit(ONE, member("w2", restarts=1), state=state)
    assert plan_unit(broken, NOW).state is not None and plan_unit(broken, NOW).delete != ()
    assert plan_unit(unit(ONE, TWO, state=state), NOW).state == replace(state, restarts=0)


def test_a_leader_whose_workers_were_taken_from_it_begins_anew_too() -> None:
    leader = replace(LEADER, gate=True)
    plan = plan_unit(unit(leader=leader, state=None), NOW)
    assert plan.create and plan.ready is False and plan.state == UnitState(("l",), breaking=True, at=NOW)


def test_workers_stay_as_long_as_a_leader_that_leaves_has_requests() -> None:
    leaving = member("l", leader=True, gone=True)
    assert plan_unit(unit(ONE, TWO, leader=leaving, wanted=False), NOW) == UnitPlan()
    assert plan_unit(unit(ONE, TWO, leader=None, wanted=False), NOW) == UnitPlan(drop=True)


happenings = st.lists(
    st.tuples(st.sampled_from(["restart", "evict", "look", "die", "kubelet", "wait"]), st.integers(0, 2)), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(happenings)
def test_no_request_reaches_a_mixed_unit_and_every_unit_is_whole_in_the_end(happens: list[tuple[str, int]]) -> None:
    """Pods of two beginnings are never told to be one; `die`: the operator ends between what it writes and what it deletes."""
    count, now = 0, NOW
    pods: dict[int, PodView] = {}
    born: dict[str, int] = {}
    state: UnitState | None = None
    beginning = 0

    def kubelet() -> None:
        nonlocal count
        for rank in range(3):
            if rank in pods and pods[rank].terminating:
                del pods[rank]
            elif rank not in pods and (rank == 0 or state is not None):
                count += 1
                pods[rank] = member(f"p{count}", leader=rank == 0)
                born[pods[rank].uid] = beginning

    def look(*, dies: bool = False) -> None:
        nonlocal state, beginning
        workers = tuple(pod for rank, pod in sorted(pods.items()) if rank > 0)
        plan = plan_unit(Unit(0, 3, pods.get(0), workers, state), now)
        if plan.state is not None:
            beginning += plan.state.breaking
            state = plan.state
        if plan.ready:
            live = list(pods.values())
            assert len(live) == 3 and not any(pod.terminating or pod.engine_restarts for pod in live)
            assert {pod.uid for pod in live} == set(state.members if state else ())
        for rank, pod in list(pods.items()):
            if pod.name in plan.delete and not dies:
                pods[rank] = replace(pod, terminating=True, ready=False)

    for what, rank in happens:
        if what == "restart" and rank in pods:
            pods[rank] = replace(pods[rank], engine_restarts=pods[rank].engine_restarts + 1)
        elif what == "evict" and rank in pods:
            pods[rank] = replace(pods[rank], terminating=True, ready=False)
        elif what in ("look", "die"):
            look(dies=what == "die")
        elif what == "kubelet":
            kubelet()
        elif what == "wait":
            now += 30.0
    for _ in range(60):
        look()
        kubelet()
        now += 30.0
    workers = tuple(pods[rank] for rank in (1, 2))
    assert plan_unit(Unit(0, 3, pods[0], workers, state), now).ready


# -- objects


def test_a_replica_is_as_many_pods_as_its_ranks_need() -> None:
    sizes = [
        ({}, 1),
        ({"engine": {"tensorParallelSize": 3}}, 3),
        ({"engine": {"tensorParallelSize": 8}, "resources": {"gpus": 8}}, 1),
        ({"engine": {"tensorParallelSize": 8, "pipelineParallelSize": 2}, "resources": {"gpus": 8}}, 2),
        ({"engine": {"tensorParallelSize": 2}, "resources": {"gpus": 8}}, 1),
        (
            {
                "engine": {"tensorParallelSize": 4},
                "resources": {"devices": {"deviceClassName": "gpu.example", "count": 2}},
            },
            2,
        ),
    ]
    assert [owner(spec).unit_size for spec, _ in sizes] == [size for _, size in sizes]


def test_only_leaders_answer_requests_and_are_counted() -> None:
    of = owner(SPEC)
    leaders, workers = workloads(of)
    lead, work = (each["spec"]["template"]["metadata"]["labels"] for each in (leaders, workers))
    counted = labels.stable_selector(of.name)
    assert counted.items() <= lead.items() and not counted.items() <= work.items()
    assert leaders["spec"]["selector"]["matchLabels"].items() <= lead.items()
    assert not leaders["spec"]["selector"]["matchLabels"].items() <= work.items(), "else it would adopt the workers"
    assert workers["spec"]["selector"]["matchLabels"].items() <= work.items()
    [names] = [each for each in build_supplies(of, DEFAULTS) if each["kind"] == "Service"]
    assert labels.DEPLOYMENT not in names["metadata"]["labels"], "the router would take workers for endpoints"
    assert names["spec"]["selector"].items() <= work.items() and names["spec"]["selector"].items() <= lead.items()


def test_a_leader_worker_set_has_the_same_pods_without_what_its_controller_tells_them() -> None:
    of = owner(SPEC)
    template = build_pod_template(of, DEFAULTS)
    group = build_workload(of, "abc", template, 2, kind="LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    leaders, workers = workloads(of)

    def plain(pod: dict[str, Any]) -> dict[str, Any]:
        out = json.loads(json.dumps(pod))
        out["metadata"]["labels"].pop(labels.UNIT, None)
        engine = out["spec"]["containers"][0]
        engine["env"] = [each for each in engine["env"] if not each["name"].startswith(("LWS_", "POD_NAME"))]
        return dict(out)

    assert plain(leaders["spec"]["template"]) == group["leaderTemplate"]
    assert plain(workers["spec"]["template"]) == group["workerTemplate"]
    assert group["size"] == 3 and group["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_workers_of_an_old_revision_come_from_its_leaders() -> None:
    of = owner(SPEC)
    leaders, workers = workloads(of)
    edited = owner({**SPEC, "image": "quire/runtime:other"})
    assert build_workers(edited, leaders, 0) == workers, "whatever the spec says by now"
    again = build_workers(of, leaders, 7)["spec"]
    address = next(
        each["value"]
        for each in again["template"]["spec"]["containers"][0]["env"]
        if each["name"] == "LWS_LEADER_ADDRESS"
    )
    assert address == "smol-abc-7.smol-units.demo" and again["selector"]["matchLabels"][labels.UNIT] == "7"


def test_names_have_room_for_what_is_made_of_them() -> None:
    """Of a StatefulSet whose name has more than 52 characters no pod is made: `controller-revision-hash` of its pods has 11 more."""
    made = body(SPEC)
    made["metadata"]["name"] = "n" * NAME_MAX
    of = parse(made)
    leaders = build_workload(of, "0123abcd", build_pod_template(of, DEFAULTS), 1000, kind="StatefulSet")
    sets = [build_workers(of, leaders, unit) for unit in (0, 99, 100, 101, 1000)]
    names = [each["metadata"]["name"] for each in sets]
    assert names[:2] == [f"{of.name}-0123abcd-{unit}" for unit in (0, 99)], "what is there keeps its name"
    assert max(map(len, names)) <= 52 and len(set(names)) == len(names)
    assert names == [unit_workers_name(of.name, "0123abcd", unit) for unit in (0, 99, 100, 101, 1000)]
    told = [
        variable["value"]
        for each in sets
        for variable in each["spec"]["template"]["spec"]["containers"][0]["env"]
        if variable["name"] == "LWS_LEADER_ADDRESS"
    ]
    leader = f"{leaders['metadata']['name']}-100"
    assert told[2] == f"{leader}.{of.name}-units.demo" and len(leader) <= 63, "as its leader's pod is called"


# -- the real StatefulSet controller; kubelets are played


class Field:
    """One LLMDeployment `smol` under the operator's process, on a real API server with the real StatefulSet controller."""

    def __init__(self, bench: OperatorProcess) -> None:
        self.bench = bench
        self.own = bench.path(GROUP, "llmdeployments", "smol")
        self.silent: set[str] = set()
        """Roles whose containers are not ready yet."""

    def pods(self, unit: int | None = None, revision: str | None = None) -> list[dict[str, Any]]:
        def unit_of(pod: dict[str, Any]) -> int:
            marks = pod["metadata"]["labels"]
            return int(marks.get(labels.UNIT) or marks["apps.kubernetes.io/pod-index"])

        return [
            pod
            for pod in self.bench.items("/api/v1", "pods")
            if (unit is None or unit_of(pod) == unit) and revision in (None, pod["metadata"]["labels"][labels.REVISION])
        ]

    def uids(self, unit: int) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(unit)}

    def tell(self, pod: dict[str, Any], **more: Any) -> None:
        """As its kubelet does."""
        name, old = pod["metadata"]["name"], {each["type"]: each for each in pod["status"].get("conditions", ())}
        inside = pod["metadata"]["labels"][labels.ROLE] not in self.silent
        gates = pod["spec"].get("readinessGates", ())
        open_ = all(old.get(each["conditionType"], {}).get("status") == "True" for each in gates)
        truth = {"ContainersReady": inside, "Ready": inside and open_}
        kept = [each for kind, each in old.items() if kind not in truth]
        now = "2026-01-01T00:00:00Z"
        told = [{"type": kind, "status": str(value), "lastTransitionTime": now} for kind, value in truth.items()]
        engine = {"name": "engine", "image": "i", "imageID": "i", "ready": inside, "restartCount": 0, "state": {}}
        status = {"phase": "Running", "podIP": "127.0.0.9", "conditions": [*kept, *told]}
        status["containerStatuses"] = [{**engine, **more}]
        answer = self.bench.api.client.patch(
            self.bench.path("/api/v1", "pods", name) + "/status",
            json={"metadata": {"uid": pod["metadata"]["uid"]}, "status": status},
            headers={"Content-Type": "application/merge-patch+json"},
        )
        assert answer.status_code in (200, 404, 409), answer.text  # it has gone, or is another one by now

    def play(self) -> None:
        for pod in self.pods():
            ready = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
            inside = pod["metadata"]["labels"][labels.ROLE] not in self.silent
            want = (
                inside
                and ready.get(labels.UNIT_READY, "True" if not pod["spec"].get("readinessGates") else "") == "True"
            )
            restarted = any(each["restartCount"] for each in pod["status"].get("containerStatuses", ()))
            if not restarted and (ready.get("ContainersReady"), ready.get("Ready")) != (str(inside), str(want)):
                self.tell(pod)

    def until(self, what: str, seen: Callable[[], object]) -> None:
        def look() -> object:
            self.play()
            return seen()

        self.bench.until(what, look)

    def status(self) -> dict[str, Any]:
        return dict((self.bench.api.get(self.own) or {}).get("status", {}))

    def whole(self, units: int) -> bool:
        return self.status().get("summary") == f"{units}/{units}" and "rollout" not in self.status()


@pytest.fixture
def controllers(api: RealApi, tmp_path: Path) -> Iterator[None]:
    program = ensure(Progress(), (KUBERNETES,))["kube-controller-manager"]
    config = tmp_path / "controllers"
    config.write_text(json.dumps(api.kubeconfig()))
    command = [
        str(program),
        f"--kubeconfig={config}",
        "--controllers=statefulset-controller,garbage-collector-controller",
        "--leader-elect=false",
    ]
    command += ["--bind-address=127.0.0.1", "--secure-port=0"]
    with (tmp_path / "controllers.log").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def field(api: RealApi, tmp_path: Path, controllers: None) -> Iterator[Field]:
    with operator_process(api, tmp_path) as bench:
        yield Field(bench)
        assert "Traceback" not in bench.log.read_text()


def test_the_hundredth_unit_of_the_longest_name_gets_its_pods(api: RealApi, controllers: None) -> None:
    made, namespace = body(SPEC), api.namespace()
    made["metadata"] |= {"name": "n" * NAME_MAX, "namespace": namespace}
    of = parse(made)
    leaders = build_workload(of, "0123abcd", build_pod_template(of, DEFAULTS), 0, kind="StatefulSet")
    workers = build_workers(of, leaders, 100)
    del workers["metadata"]["ownerReferences"]
    assert api.create(f"/apis/apps/v1/namespaces/{namespace}/statefulsets", workers, dry_run=False).status_code == 201

    def pods() -> str | None:
        found = (api.get(f"/api/v1/namespaces/{namespace}/pods") or {})["items"]
        return None if len(found) == 2 else f"{len(found)} pods"

    until("both workers", pods, deadline_s=120)


def test_a_unit_starts_fails_and_begins_anew_as_one(field: Field) -> None:
    bench, model = field.bench, {"source": "file:///models/m.gguf"}
    field.silent = {labels.WORKER}
    spec = {"model": model, "replicas": 2, "engine": {"tensorParallelSize": 2}, "rollout": {"drainTimeout": "0s"}}
    bench.create("LLMDeployment", "llmdeployments", "smol", spec)
    field.until("two units of two", lambda: len(field.pods(0)) == len(field.pods(1)) == 2)
    field.until("they are counted", lambda: field.status().get("replicas") == 2)
    heads = [pod for pod in field.pods() if pod["metadata"]["labels"][labels.ROLE] == labels.LEADER]
    told = [{each["type"]: each["status"] for each in pod["status"]["conditions"]} for pod in heads]
    assert all(each["ContainersReady"] == "True" and each["Ready"] == "False" for each in told), "without its workers"
    assert field.status()["readyReplicas"] == 0
    field.silent = set()
    field.until("both are ready", lambda: field.whole(2))
    first = field.status()["currentRevision"]
    scale = bench.api.get(field.own + "/scale")
    assert (
        scale is not None
        and scale["status"]["replicas"] == 2
        and "quire.dev/role=leader" in scale["status"]["selector"]
    )

    zero, one = field.uids(0), field.uids(1)
    [worker] = [pod for pod in field.pods(0) if pod["metadata"]["labels"][labels.ROLE] == labels.WORKER]
    field.tell(worker, restartCount=1)
    field.until("the whole unit is another one", lambda: len(field.uids(0)) == 2 and not field.uids(0) & zero)
    field.until("it is ready", lambda: field.whole(2))
    assert field.uids(1) == one, "the other one goes on"

    def restarts() -> int:
        return [event["reason"] for event in bench.items("/apis/events.k8s.io/v1", "events")].count("UnitRestarted")

    field.until("it is told", lambda: restarts() == 1)

    [leader] = [pod for pod in field.pods(1) if pod["metadata"]["labels"][labels.ROLE] == labels.LEADER]
    bench.api.client.delete(bench.path("/api/v1", "pods", leader["metadata"]["name"])).raise_for_status()
    field.until("its workers go with it", lambda: len(field.uids(1)) == 2 and not field.uids(1) & one)
    field.until("it is ready", lambda: field.whole(2))

    bench.api.patch(field.own, {"spec": {"engine": {"maxNumSeqs": 4}}})
    field.until("another revision", lambda: field.status()["currentRevision"] != first and field.whole(2))
    field.until("of the old one nothing is left", lambda: len(field.pods()) == 4 and not field.pods(revision=first))
    sets = {each["metadata"]["name"]: each["spec"]["replicas"] for each in bench.items("/apis/apps/v1", "statefulsets")}
    now = field.status()["currentRevision"]
    assert sets == {f"smol-{first}": 0, f"smol-{now}": 2, f"smol-{now}-0": 1, f"smol-{now}-1": 1}

    bench.api.patch(field.own, {"spec": {"replicas": 1}})
    field.until("one unit is left", lambda: len(field.pods()) == 2 and field.whole(1))
    bench.until("and one set of workers", lambda: len(bench.items("/apis/apps/v1", "statefulsets")) == 3)
    assert restarts() == 2, "each new beginning is told once, and nothing else is one"


# -- LeaderWorkerSets


def test_a_leader_worker_set_is_made_and_sized_without_its_controller_which_cannot_be_had_here(
    api: RealApi, tmp_path: Path
) -> None:
    """Pods are made by hand, with the labels that the controller gives them."""
    api.define(definition())
    groups = "/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"
    with operator_process(api, tmp_path, groups=True) as bench:
        field = Field(bench)
        rollout = {"drainTimeout": "0s", "revisionHistoryLimit": 0}
        spec = {"model": {"source": "file:///m"}, "engine": {"tensorParallelSize": 2}, "rollout": rollout}
        bench.create("LLMDeployment", "llmdeployments", "smol", spec)
        bench.until("the set", lambda: bench.items(*groups))
        [group] = bench.items(*groups)
        revision = group["metadata"]["labels"][labels.REVISION]
        assert group["spec"]["replicas"] == 1 and group["spec"]["leaderWorkerTemplate"]["size"] == 2
        assert bench.items("/apis/apps/v1", "statefulsets") == []

        def make(group: dict[str, Any]) -> None:
            for rank, template in enumerate(("leaderTemplate", "workerTemplate")):
                pod = group["spec"]["leaderWorkerTemplate"][template]
                name = f"{group['metadata']['name']}-0" + (f"-{rank}" if rank else "")
                marks = {**pod["metadata"]["labels"], labels.LWS_UNIT: "0"}
                body = {"metadata": {"name": name, "labels": marks}, "spec": pod["spec"]}
                assert api.create(bench.path("/api/v1", "pods"), body, dry_run=False).status_code == 201

        make(group)
        field.silent = {labels.WORKER}
        field.until("the leader is counted", lambda: field.status().get("replicas") == 1)
        assert field.status()["readyReplicas"] == 0
        field.silent = set()
        field.until("the unit is ready", lambda: field.whole(1))

        bench.api.patch(field.own, {"spec": {"replicas": 3}})
        bench.until("three groups", lambda: bench.items(*groups)[0]["spec"]["replicas"] == 3)
        bench.api.patch(field.own, {"spec": {"replicas": 1}})
        bench.until("one group", lambda: bench.items(*groups)[0]["spec"]["replicas"] == 1)
        field.until("rest", lambda: field.whole(1))

        bench.api.patch(field.own, {"spec": {"engine": {"maxNumSeqs": 4}}})
        bench.until("another set", lambda: len(bench.items(*groups)) == 2)
        [fresh] = [each for each in bench.items(*groups) if each["metadata"]["labels"][labels.REVISION] != revision]
        make(fresh)
        (tmp_path / "person").write_text(json.dumps(api.kubeconfig()))
        flags = Flags(namespace=bench.namespace, kubeconfig=str(tmp_path / "person"))
        with closing(Reach(flags)) as reach:
            told = history_of(reach.parsed("smol").status, reach.workloads("smol"), now=time.time())
        assert [each.name for each in told] == [fresh["metadata"]["labels"][labels.REVISION], revision]

        def sizes() -> list[int]:
            field.play()
            found = {each["metadata"]["name"]: each["spec"]["replicas"] for each in bench.items(*groups)}
            if found.get(group["metadata"]["name"]) == 0:  # as its controller does
                for pod in field.pods(revision=revision):
                    where = bench.path("/api/v1", "pods", pod["metadata"]["name"])
                    api.client.delete(where).raise_for_status()
            return list(found.values())

        bench.until("the old set has gone", lambda: sizes() == [1])
        assert "Traceback" not in bench.log.read_text()
    refused = {
        each["requestURI"]
        for each in api.audited(bench.namespace, user=bench.user)
        if each["responseStatus"]["code"] == 403
    }
    assert not refused
