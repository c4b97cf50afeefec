"""The small objects around the pods on a real API server: made, kept, taken away, never taken over."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import DEFAULTS, body
from quire_operator.cluster import Cluster, Supplies
from quire_operator.cluster.supplies import LOOK_AGAIN_S
from quire_operator.errors import ApplyError
from quire_operator.resources import build_supplies, supply_names
from quire_operator.spec import Deployment, parse
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

SHARED = {"source": "hf://org/name", "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}


class Bench:
    """An LLMDeployment in a namespace of its own, and a clock that is set by hand."""

    def __init__(self, api: RealApi, cluster: Cluster) -> None:
        self.api = api
        self.namespace = api.namespace()
        self.now = 0.0
        self.supplies = Supplies(cluster, lambda: self.now)

    def owner(self, spec: dict[str, Any]) -> Deployment:
        made = body(spec)
        made["metadata"]["namespace"] = self.namespace
        return parse(made)

    async def apply(self, spec: dict[str, Any] | None = None, *, prune: bool = True) -> None:
        owner = self.owner(spec or {})
        await self.supplies.apply(owner, build_supplies(owner, DEFAULTS), supply_names(owner), prune=prune)

    def path(self, kind: str, name: str = "smol") -> str:
        group = {
            "serviceaccounts": "/api/v1",
            "persistentvolumeclaims": "/api/v1",
            "poddisruptionbudgets": "/apis/policy/v1",
            "networkpolicies": "/apis/networking.k8s.io/v1",
        }[kind]
        return f"{group}/namespaces/{self.namespace}/{kind}/{name}"

    def get(self, kind: str, name: str = "smol") -> dict[str, Any] | None:
        return self.api.get(self.path(kind, name))


@pytest.fixture
def bench(api: RealApi, real_cluster: Cluster) -> Bench:
    return Bench(api, real_cluster)


async def test_they_are_made_once_and_left_alone(bench: Bench) -> None:
    await bench.apply()
    kinds = ("serviceaccounts", "poddisruptionbudgets", "networkpolicies")
    made = [bench.get(kind) for kind in kinds]
    assert all(made)
    bench.now += LOOK_AGAIN_S + 1
    await bench.apply()
    assert [bench.get(kind) for kind in kinds] == made


async def test_what_others_change_is_put_right_in_a_while(bench: Bench) -> None:
    await bench.apply()
    assert bench.api.client.delete(bench.path("networkpolicies")).status_code == 200
    bench.api.patch(bench.path("poddisruptionbudgets"), {"spec": {"maxUnavailable": 9}})
    await bench.apply()
    assert bench.get("networkpolicies") is None, "a cluster at rest is asked little"
    bench.now += LOOK_AGAIN_S + 1
    await bench.apply()
    budget = bench.get("poddisruptionbudgets")
    assert bench.get("networkpolicies") is not None and budget is not None
    assert budget["spec"]["maxUnavailable"] == 1


async def test_what_is_not_wanted_any_more_goes_when_no_old_revision_needs_it(bench: Bench) -> None:
    await bench.apply({"model": SHARED})
    assert bench.get("persistentvolumeclaims", "smol-cache") is not None
    less = {"networkPolicy": {"enabled": False}, "serviceAccountName": "mine"}
    await bench.apply(less, prune=False)
    assert bench.get("persistentvolumeclaims", "smol-cache") is not None
    await bench.apply(less)
    claim = bench.get("persistentvolumeclaims", "smol-cache")
    assert claim is None or "deletionTimestamp" in claim["metadata"], "it stays until the last pod lets go"
    assert bench.get("networkpolicies") is None and bench.get("serviceaccounts") is None
    assert bench.get("poddisruptionbudgets") is not None


async def test_an_object_of_somebody_else_is_neither_overwritten_nor_deleted(bench: Bench) -> None:
    folder = bench.path("serviceaccounts").rsplit("/", 1)[0]
    theirs = bench.api.create(folder, {"metadata": {"name": "smol"}}, dry_run=False).json()
    with pytest.raises(ApplyError, match="was not made by the operator"):
        await bench.apply()
    assert bench.get("serviceaccounts") == theirs
    assert bench.get("networkpolicies") is not None, "the others are made all the same"
    await bench.apply({"serviceAccountName": "smol"})
    assert bench.get("serviceaccounts") == theirs


async def test_what_the_server_refuses_is_told_and_tried_again(bench: Bench) -> None:
    wrong = {"networkPolicy": {"allowFrom": [{"ipBlock": {"cidr": "no address"}}]}}
    for _ in range(2):
        with pytest.raises(ApplyError, match=r"NetworkPolicy .* is refused by the API server: .*no address"):
            await bench.apply(wrong)
    assert bench.get("poddisruptionbudgets") is not None
