"""A real API server takes everything the builders make, as they make it, and nothing of it gets lost on the way."""

from __future__ import annotations

import re
from typing import Any

import pytest
from lightkube.generic_resource import create_api_info

from operator_kit import DEFAULTS, body, owner, workloads
from quire_operator.cluster import Cluster, kinds
from quire_operator.cluster.drift import matches
from quire_operator.errors import ApplyError
from quire_operator.resources import (
    build_deployment,
    build_hpa,
    build_pod_template,
    build_service,
    build_supplies,
)
from quire_operator.spec import Key, parse
from real_api import RealApi
from spec_cases import SPECS

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

PATHS = {
    "Deployment": "/apis/apps/v1/namespaces/demo/deployments",
    "StatefulSet": "/apis/apps/v1/namespaces/demo/statefulsets",
    "Service": "/api/v1/namespaces/demo/services",
    "HorizontalPodAutoscaler": "/apis/autoscaling/v2/namespaces/demo/horizontalpodautoscalers",
    "ServiceAccount": "/api/v1/namespaces/demo/serviceaccounts",
    "PersistentVolumeClaim": "/api/v1/namespaces/demo/persistentvolumeclaims",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/demo/poddisruptionbudgets",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/demo/networkpolicies",
    "ResourceClaimTemplate": "/apis/resource.k8s.io/v1/namespaces/demo/resourceclaimtemplates",
}


def objects(spec: dict[str, Any]) -> list[dict[str, Any]]:
    of = owner(spec)
    made: list[dict[str, Any] | None] = [
        *build_supplies(of, DEFAULTS),
        build_service(of),
        *workloads(of),
        build_hpa(of),
    ]
    return [each for each in made if each is not None]


async def test_spec_replicas_is_written_only_against_the_version_that_was_read(api: RealApi) -> None:
    where, key = "/apis/quire.dev/v1alpha1/namespaces/demo/llmdeployments", Key("demo", "scaled-by-version")
    scaling = {"minReplicas": 0, "maxReplicas": 2, "targets": {"queueSize": "4"}}
    spec = {"model": {"source": "file:///m"}, "replicas": None, "autoscaling": scaling}
    made = api.create(where, {**body(spec), "metadata": {"name": key.name}}, dry_run=False)
    assert made.status_code == 201, made.text
    read = made.json()["metadata"]["resourceVersion"]
    client = api.lightkube()
    try:
        cluster = Cluster(client)
        assert await cluster.set_scale(key, 1, version=read)
        assert not await cluster.set_scale(key, 0, version=read), "written by somebody since"
        live = api.get(f"{where}/{key.name}") or {}
        assert live["spec"]["replicas"] == 1 and live["spec"]["autoscaling"]["minReplicas"] == 0
        assert await cluster.set_scale(key, 0, version=live["metadata"]["resourceVersion"])
    finally:
        await client.close()
        api.client.delete(f"{where}/{key.name}").raise_for_status()


@pytest.mark.parametrize("case", SPECS)
def test_every_object_is_taken_whole(api: RealApi, case: str) -> None:
    for wanted in objects(SPECS[case]):
        answer = api.create(PATHS[wanted["kind"]], wanted)
        assert answer.status_code == 201, answer.text
        taken = answer.json()
        assert matches(wanted.get("spec", {}), taken.get("spec", {})), "a field was dropped or changed"


@pytest.mark.parametrize("case", SPECS)
def test_every_pod_is_admitted_where_only_restricted_ones_are(api: RealApi, case: str) -> None:
    template = build_pod_template(owner(SPECS[case]), DEFAULTS)
    pod = {"metadata": {**template["metadata"], "name": "p"}, "spec": template["spec"]}
    answer = api.create("/api/v1/namespaces/demo/pods", pod)
    if case == "node-local":
        assert answer.status_code == 403 and "hostPath" in answer.text
    else:
        assert answer.status_code == 201, answer.text


async def test_a_field_that_the_server_drops_is_told_each_time(api: RealApi, real_cluster: Cluster) -> None:
    """`hostnameOverride` is behind a gate that is off in this version: the server takes the pod and forgets the field."""
    made = body({"template": {"spec": {"hostnameOverride": "here"}}})
    made["metadata"]["namespace"] = api.namespace()
    of = parse(made)
    wanted = build_deployment(of, "abc", build_pod_template(of, DEFAULTS), 1)
    lost = re.escape("was taken without spec.template.spec.hostnameOverride")
    with pytest.raises(ApplyError, match=lost):
        await real_cluster.apply(wanted, None)
    for _ in range(2):
        live = await real_cluster.get(kinds.Deployment, "smol-abc", of.namespace)
        assert live is not None
        with pytest.raises(ApplyError, match=lost):
            await real_cluster.apply(wanted, live)
    fine = build_deployment(of, "abc", build_pod_template(owner(), DEFAULTS), 1)
    assert await real_cluster.apply(fine, live)


async def test_a_kind_that_the_cluster_does_not_have_becomes_a_sentence(
    real_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that nobody serves is refused in plain text, as ResourceClaimTemplates are before Kubernetes 1.34."""

    class Nowhere(kinds.ResourceClaimTemplate):
        _api_info = create_api_info("nowhere.quire.dev", "v1", "ResourceClaimTemplate", "resourceclaimtemplates")

    monkeypatch.setitem(kinds.OF, "ResourceClaimTemplate", Nowhere)
    assert await real_cluster.get(Nowhere, "x", "default") is None
    [wanted] = [
        each
        for each in objects({"resources": {"devices": {"deviceClassName": "gpu.example"}}})
        if each["kind"] == "ResourceClaimTemplate"
    ]
    with pytest.raises(ApplyError, match=r"this cluster has no nowhere\.quire\.dev/v1; install"):
        await real_cluster.apply(wanted, None)
