"""The operator's hands against a scripted API: what is read, what is written, and what is not."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from lightkube.core.exceptions import ApiError

from operator_kit import DEFAULTS, KEY, body, owner
from quire_operator import labels
from quire_operator.cluster import Cluster, kinds
from quire_operator.errors import ApplyError
from quire_operator.resources import build_deployment, build_hpa, build_pod_template, build_service, build_workload
from quire_operator.resources.units import build_workers
from quire_operator.status import Event
from scripted_api import ScriptedApi, scripted_api

MINE = "/apis/quire.dev/v1alpha1/namespaces/demo/llmdeployments/smol"
DEPLOYMENT = "/apis/apps/v1/namespaces/demo/deployments/smol-abc"
SERVICE = "/api/v1/namespaces/demo/services/smol"
HPA = "/apis/autoscaling/v2/namespaces/demo/horizontalpodautoscalers/smol"


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    async with scripted_api() as made:
        made.put(MINE, body())
        yield made


@pytest.fixture
async def cluster(api: ScriptedApi) -> AsyncIterator[Cluster]:
    client = api.client()
    yield Cluster(client)
    await client.close()


def deployment(replicas: int = 1) -> dict[str, object]:
    return build_deployment(owner(), "abc", build_pod_template(owner(), DEFAULTS), replicas, intent="i")


async def test_it_sees_its_own_children_only(api: ScriptedApi, cluster: Cluster) -> None:
    api.put(DEPLOYMENT, deployment())
    foreign = deployment()
    foreign["metadata"] = {"labels": {labels.DEPLOYMENT: "smol"}, "ownerReferences": [{"uid": "somebody"}]}
    api.put("/apis/apps/v1/namespaces/demo/deployments/foreign", foreign)
    seen = await cluster.observe(KEY)
    assert seen is not None and [item["metadata"]["name"] for item in seen.deployments] == ["smol-abc"]
    assert seen.service is None and seen.hpa is None and seen.pods == []
    del api.objects[MINE]
    assert await cluster.observe(KEY) is None


async def test_a_child_is_applied_once_and_again_only_when_it_differs(api: ScriptedApi, cluster: Cluster) -> None:
    async def round_trip(replicas: int) -> bool:
        seen = await cluster.observe(KEY)
        assert seen is not None
        return await cluster.apply(deployment(replicas), next(iter(seen.deployments), None))

    assert await round_trip(1)
    assert not await round_trip(1)
    assert await round_trip(2)
    api.objects[DEPLOYMENT]["spec"]["replicas"] = 5
    api.objects[DEPLOYMENT]["metadata"]["resourceVersion"] = "999"
    assert await round_trip(2), "an edit by somebody else is put right"
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 2
    assert api.writes == [("PATCH", DEPLOYMENT)] * 3


async def test_an_object_of_somebody_else_is_neither_overwritten_nor_adopted(
    api: ScriptedApi, cluster: Cluster
) -> None:
    api.put(SERVICE, {"metadata": {"name": "smol"}, "spec": {"selector": {"app": "database"}}})
    api.put(HPA, {"metadata": {"name": "smol"}, "spec": {}})
    seen = await cluster.observe(KEY)
    assert seen is not None and seen.own_hpa is None
    scaled = owner({"autoscaling": {"maxReplicas": 2, "targets": {"queueSize": "4"}}})
    for wanted, live in ((build_service(owner()), seen.service), (build_hpa(scaled) or {}, seen.hpa)):
        with pytest.raises(
            ApplyError, match=r"demo/smol is there already and was not made by the operator: delete it, or"
        ):
            await cluster.apply(wanted, live)
    assert api.writes == []


async def test_nothing_is_remembered_of_a_deleted_one(api: ScriptedApi, cluster: Cluster) -> None:
    """Nor of workers of units, whose names have more parts."""
    large = owner({"engine": {"tensorParallelSize": 2}})
    template = build_pod_template(large, DEFAULTS)
    leaders = build_workload(large, "abc", template, 1, kind="StatefulSet")
    for wanted in (build_service(large), deployment(), leaders, build_workers(large, leaders, 0)):
        await cluster.apply(wanted, None)
    assert cluster._applied
    cluster.forget(KEY)
    assert cluster._applied == {}


async def test_what_the_server_rewrites_is_not_fought_over(api: ScriptedApi, cluster: Cluster) -> None:
    written = await cluster.apply(build_service(owner()), None)
    live = api.objects[SERVICE]
    live["spec"]["ports"][0]["port"] = 81  # as a mutating webhook would, in the same write
    assert written and not await cluster.apply(build_service(owner()), live)


async def test_a_refusal_becomes_one_sentence(api: ScriptedApi, cluster: Cluster) -> None:
    unknown = "failed to create typed patch object (demo/smol; v1, Kind=Service): .spec.x: field not declared in schema"
    webhook = 'Internal error occurred: failed calling webhook "policy.example": connection refused'
    refusals = ((422, "spec.x: Invalid value"), (403, "quota exceeded"), (500, unknown), (500, webhook))
    for code, message in refusals:
        api.refuse["PATCH", SERVICE] = (code, message)
        with pytest.raises(ApplyError, match="Service demo/smol is refused by the API server: ") as caught:
            await cluster.apply(build_service(owner()), None)
        assert message in str(caught.value)


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_server_in_trouble_is_no_refusal(api: ScriptedApi, cluster: Cluster, code: int) -> None:
    api.refuse["PATCH", SERVICE] = (code, "etcd is away")
    with pytest.raises(ApiError):
        await cluster.apply(build_service(owner()), None)


async def test_the_status_is_written_when_it_changed_and_conditions_have_no_order(
    api: ScriptedApi, cluster: Cluster
) -> None:
    one, two = {"type": "Ready", "status": "True"}, {"type": "Available", "status": "True"}
    assert await cluster.write_status(api.objects[MINE], {"phase": "Ready", "conditions": [one, two]})
    assert api.writes == [("PATCH", f"{MINE}/status")]
    assert not await cluster.write_status(api.objects[MINE], {"conditions": [two, one], "phase": "Ready"})
    assert await cluster.write_status(api.objects[MINE], {"phase": "Ready", "conditions": [one]})
    gone = api.objects.pop(MINE)
    assert not await cluster.write_status(gone, {"phase": "Failed"})


async def test_events_name_their_object_and_a_lost_one_is_no_error(api: ScriptedApi, cluster: Cluster) -> None:
    events = "/apis/events.k8s.io/v1/namespaces/demo/events"
    await cluster.post_event(api.objects[MINE], Event("Warning", "OOMKilled", "x" * 5000, "Reconcile"))
    (made,) = [item for path, item in api.objects.items() if path.startswith(events)]
    assert made["regarding"]["name"] == "smol" and made["regarding"]["uid"] == "uid-1"
    assert made["reason"] == "OOMKilled" and made["note"] == "x" * 1024 and made["action"] == "Reconcile"
    await cluster.post_event(api.objects[MINE], Event("Warning", "Long", "…" * 1000))
    [long] = [item for path, item in api.objects.items() if path.startswith(events) and item["reason"] == "Long"]
    assert long["note"] == "…" * 341, "the API server counts bytes, and refuses more than 1024"
    api.refuse["POST", events] = (403, "no")
    await cluster.post_event(api.objects[MINE], Event("Normal", "Ready", "y"))


async def test_an_occasion_is_told_once_whoever_tells_it(
    api: ScriptedApi, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    events = "/apis/events.k8s.io/v1/namespaces/demo/events"

    def told() -> int:
        return sum(path.startswith(events) for path in api.objects)

    for occasion in ("a", "b", "a"):
        await cluster.post_event(api.objects[MINE], Event("Warning", "OOMKilled", "x", occasion=occasion))
    await Cluster(cluster.client).post_event(api.objects[MINE], Event("Warning", "OOMKilled", "x", occasion="b"))
    assert told() == 2 and caplog.records == [], "which is no loss"
    for _ in range(2):
        await cluster.post_event(api.objects[MINE], Event("Normal", "Scaled", "x"))
    assert told() == 4, "each is of its own"


async def test_resize_delete_and_scale(api: ScriptedApi, cluster: Cluster) -> None:
    api.put(DEPLOYMENT, deployment(2))
    await cluster.resize(KEY, "smol-abc", 0)
    assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 0
    assert api.objects[DEPLOYMENT]["spec"]["template"], "the template of an old revision is left alone"
    await cluster.delete(kinds.Deployment, KEY, "smol-abc")
    await cluster.delete(kinds.Deployment, KEY, "smol-abc")
    assert DEPLOYMENT not in api.objects
    version = api.put(f"{MINE}/scale", {"spec": {"replicas": 0}})["metadata"]["resourceVersion"]
    assert await cluster.set_scale(KEY, 2, version=version)
    assert api.writes[-1] == ("PATCH", f"{MINE}/scale")
    assert not await cluster.set_scale(KEY, 3, version=version), "somebody wrote in between"
    assert api.objects[f"{MINE}/scale"]["spec"]["replicas"] == 2
    api.refuse["PATCH", f"{MINE}/scale"] = (403, "no")
    with pytest.raises(ApiError):
        await cluster.set_scale(KEY, 3, version="7")
