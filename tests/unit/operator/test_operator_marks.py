"""Labels and annotations of ours that somebody else removes or overwrites: nothing fails for it, and what things are found by is put back."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from operator_kit import KEY, MemoryCluster, owner, pod, workloads
from quire_operator import labels
from quire_operator.cluster import Cluster, kinds
from quire_operator.cluster.units import state_of
from quire_operator.observation import marks_of, unit_size_of, workload_views
from quire_operator.policy.units import UnitState
from quire_operator.resources import build_service
from reconcile_bench import Bench
from scripted_api import scripted_api

UNITS: dict[str, Any] = {"engine": {"tensorParallelSize": 3}, "replicas": 2}
LABELS = (labels.DEPLOYMENT, labels.REVISION, labels.ROLE, labels.TRACK, labels.UNIT)
NOTES = (labels.UNIT_SIZE, labels.UNIT_STATE, labels.APPLIED_HASH, labels.INTENT_HASH, labels.MODEL)

values = st.none() | st.text(max_size=8) | st.sampled_from(
    ["3", "-1", "²", "1e9", "null", "[]", '{"restarts":"x"}', '{"members":[{}]}', '{"at":NaN}', '{"at":1e999}', "worker", "leader"]
)  # fmt: skip
edits = st.lists(st.tuples(st.integers(0, 30), st.sampled_from((*LABELS, *NOTES)), values), min_size=1, max_size=12)


def tamper(item: dict[str, Any], key: str, value: str | None) -> None:
    """None: it is removed."""
    where = item["metadata"].setdefault("labels" if key in LABELS else "annotations", {})
    if value is None:
        where.pop(key, None)
    else:
        where[key] = value


def unit_pods(cluster: MemoryCluster) -> None:
    """As the StatefulSet controller and the kubelets make them, all of them ready."""
    for (kind, name), item in list(cluster.children.items()):
        if kind != "StatefulSet":
            continue
        marks, start = item["spec"]["template"]["metadata"]["labels"], item["spec"].get("ordinals", {}).get("start", 0)
        for ordinal in range(start, start + item["spec"]["replicas"]):
            made = pod(f"{name}-{ordinal}", marks[labels.REVISION])
            made["metadata"] |= {
                "labels": {**marks, "apps.kubernetes.io/pod-index": str(ordinal)},
                "uid": f"{name}-{ordinal}",
            }
            made["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
            cluster.pods.setdefault(made["metadata"]["name"], made)


def own_marks(cluster: MemoryCluster) -> dict[str, dict[str, str | None]]:
    """Of each workload, those it is found by."""
    return {
        name: {key: item["metadata"]["labels"].get(key) for key in marks_of(item)}
        for (kind, name), item in cluster.children.items()
        if kind in ("Deployment", "StatefulSet")
    }


@settings(max_examples=40)
@given(edits)
def test_marks_of_children_are_put_back_and_it_goes_on_serving(happens: list[tuple[int, str, str | None]]) -> None:
    async def scene() -> None:
        bench = Bench({"replicas": 2})
        await bench.settle(rounds=3)
        bench.cluster.edit(engine={"maxNumSeqs": 8})
        await bench.settle(rounds=8)
        assert bench.condition("Ready") == ("True", "Answering")
        children, pods = bench.cluster.children, set(bench.cluster.pods)
        before = own_marks(bench.cluster)
        for which, key, value in happens:
            tamper(list(children.values())[which % len(children)], key, value)
        await bench.settle(rounds=4)
        assert own_marks(bench.cluster) == before
        assert set(bench.cluster.pods) == pods, "no pod is replaced for it"
        assert bench.condition("Ready") == ("True", "Answering")

    asyncio.run(scene())


@settings(max_examples=40)
@given(edits)
def test_marks_of_units_are_put_back_and_none_begins_anew_for_it(happens: list[tuple[int, str, str | None]]) -> None:
    async def scene() -> None:
        bench = Bench(UNITS)
        for _ in range(3):
            await bench.look()
            unit_pods(bench.cluster)
        await bench.look()
        sets = [item for (kind, _), item in bench.cluster.children.items() if kind == "StatefulSet"]
        before, pods = own_marks(bench.cluster), set(bench.cluster.pods)
        assert len(sets) == 3 and len(pods) == 6
        for which, key, value in happens:
            tamper(sets[which % len(sets)], key, value)
        for _ in range(3):
            await bench.look()
        assert own_marks(bench.cluster) == before
        assert not [write for write in bench.cluster.writes if write.startswith("delete")]
        sizes = {
            name: item["spec"]["replicas"]
            for (kind, name), item in bench.cluster.children.items()
            if kind == "StatefulSet"
        }
        assert sorted(sizes.values()) == [2, 2, 2]

    asyncio.run(scene())


@settings(max_examples=40)
@given(edits, st.booleans())
def test_marks_of_pods_make_nothing_fail(happens: list[tuple[int, str, str | None]], units: bool) -> None:
    async def scene() -> None:
        bench = Bench(UNITS if units else {"replicas": 3})
        for _ in range(3):
            await bench.look()
            unit_pods(bench.cluster) if units else bench.cluster.play()
        await bench.look()
        pods = list(bench.cluster.pods.values())
        for which, key, value in happens:
            tamper(pods[which % len(pods)], key, value)
        for _ in range(3):
            await bench.look()

    asyncio.run(scene())


def test_what_a_workload_is_stands_in_what_nobody_can_edit() -> None:
    leaders, workers = workloads(owner(UNITS))
    for each in (leaders, workers):
        each["metadata"]["labels"] = {labels.REVISION: "other", labels.ROLE: "x"}
        each["metadata"].pop("annotations", None)
    assert [view.revision for view in workload_views([leaders])] == ["abc"]
    assert unit_size_of(leaders) == 3 and marks_of(workers)[labels.UNIT] == "0"


def test_the_state_of_a_unit_that_cannot_be_read_is_forgotten() -> None:
    _, workers = workloads(owner(UNITS))
    for garbage in (
        "",
        "{",
        "[]",
        '{"members": "abc"}',
        '{"members": [{}]}',
        '{"restarts": {}}',
        '{"at": NaN}',
        '{"at": 1e999}',
    ):
        workers["metadata"]["annotations"] = {labels.UNIT_STATE: garbage}
        assert state_of(workers) == UnitState(), garbage


async def test_a_workload_without_its_label_is_found_by_its_pods() -> None:
    """No list has it any more; a rollout that did not see it would take its revision for gone, and move all requests elsewhere."""
    whole = owner()
    [deployment] = workloads(whole, 2)
    leaders, workers = workloads(owner(UNITS))
    base = "/apis/apps/v1/namespaces/demo"
    async with scripted_api() as api:
        api.put(
            "/apis/quire.dev/v1alpha1/namespaces/demo/llmdeployments/smol",
            {"metadata": {"name": "smol", "namespace": "demo", "uid": "uid-1"}},
        )
        for item, plural in ((deployment, "deployments"), (leaders, "statefulsets"), (workers, "statefulsets")):
            del item["metadata"]["labels"][labels.DEPLOYMENT]
            api.put(f"{base}/{plural}/{item['metadata']['name']}", item)
        marks = workers["spec"]["template"]["metadata"]["labels"]
        for number, more in enumerate(({}, {"apps.kubernetes.io/pod-index": "0"}, marks)):
            made = pod(f"p{number}", "abc")
            made["metadata"]["labels"] |= more
            api.put(f"/api/v1/namespaces/demo/pods/p{number}", made)
        client = api.client()
        cluster = Cluster(client)
        seen = await cluster.observe(KEY)
        assert seen is not None
        assert [item["metadata"]["name"] for item in seen.deployments] == ["smol-abc"]
        assert {item["metadata"]["name"] for item in seen.sets} == {"smol-abc", "smol-abc-0"}
        await cluster.mark(kinds.Deployment, KEY, "smol-abc", {labels.DEPLOYMENT: "smol"})
        assert api.objects[f"{base}/deployments/smol-abc"]["metadata"]["labels"][labels.DEPLOYMENT] == "smol"
        service = api.put("/api/v1/namespaces/demo/services/smol", build_service(whole))
        service["metadata"]["labels"] = {}
        assert await cluster.apply(build_service(whole), service), "it is ours by its owner"
        await client.close()
