"""The chart's rights against what the operator really asks for: nothing is refused, and no verb is granted for nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from helm_kit import variables
from operator_process import GROUP, OperatorProcess, free_port, operator_process
from prometheus_kit import operator_queries, prometheus
from quire_operator.cluster import Cluster
from quire_operator.cluster.trust import SecretStore
from real_api import EVERYWHERE, ROUTER, RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

HUB = {"source": "hf://org/name", "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}
FULL: dict[str, Any] = {
    "model": HUB,
    "engine": {"tensorParallelSize": 2},
    "resources": {"devices": {"deviceClassName": "gpu.example"}},
    "rollout": {"strategy": "Recreate"},
}


def granted(rules: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(events: list[dict[str, Any]]) -> set[tuple[str, str, str]]:
    """Server-side apply that makes an object needs the right to create it, too."""
    found: set[tuple[str, str, str]] = set()
    for event in events:
        if (where := event.get("objectRef")) is None:  # discovery, which everybody may
            continue
        resource = "/".join(filter(None, (where["resource"], where.get("subresource"))))
        found.add((where.get("apiGroup", ""), resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
            found.add((where.get("apiGroup", ""), resource, "create"))
    return found


def unit(bench: OperatorProcess) -> None:
    """A unit of two pods begins anew when its leader does, and goes with its revision."""
    sets, pods = bench.path("/apis/apps/v1", "statefulsets"), bench.path("/api/v1", "pods")
    bench.until("the first status", lambda: bench.updated("smol"))
    name = f"smol-{bench.updated('smol')}"
    bench.until("its leaders", lambda: bench.api.get(f"{sets}/{name}"))
    leaders = bench.api.get(f"{sets}/{name}") or {}
    bench.until("its workers", lambda: bench.api.get(f"{sets}/{name}-0"))
    workers = bench.api.get(f"{sets}/{name}-0") or {}
    for pod, of in ((f"{name}-0", leaders), (f"{name}-0-1", workers)):
        marks = {**of["spec"]["template"]["metadata"]["labels"], "quire.dev/unit": "0"}
        body = {"metadata": {"name": pod, "labels": marks}, "spec": {"containers": [{"name": "engine", "image": "x"}]}}
        answer = bench.api.create(pods, body, dry_run=False)
        assert answer.status_code == 201, answer.text
        ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
        bench.api.patch(f"{pods}/{pod}/status", {"status": {"phase": "Running", "conditions": ready}})

    def told() -> bool:
        conditions = (bench.api.get(f"{pods}/{name}-0") or {"status": {}})["status"].get("conditions", ())
        return any(each["type"] == "quire.dev/unit-ready" and each["status"] == "True" for each in conditions)

    bench.until("the unit is ready", told)
    ended = {"name": "engine", "image": "x", "imageID": "x", "ready": False, "restartCount": 1, "state": {}}
    bench.api.patch(f"{pods}/{name}-0/status", {"status": {"containerStatuses": [ended]}})
    bench.until("both are gone", lambda: not bench.items("/api/v1", "pods"))


def live_through(bench: OperatorProcess) -> None:
    """Everything that an LLMDeployment and a ModelCache may meet, from the first apply to the last edit."""
    deployments = "/apis/apps/v1", "deployments"
    claim = bench.path("/api/v1", "persistentvolumeclaims", "smol-cache")
    own = bench.path(GROUP, "llmdeployments", "smol")
    job = bench.path("/apis/batch/v1", "jobs", "llama-modelcache-fill")
    bench.create("LLMDeployment", "llmdeployments", "smol", FULL)
    bench.create("ModelCache", "modelcaches", "llama", {"model": {"source": "hf://org/name"}, "size": "1Gi"})
    bench.create("LLMAdapter", "llmadapters", "support", {"deployment": "smol", "source": "hf://org/lora"})
    bench.until("the claim", lambda: bench.api.get(claim))
    bench.until("the Job", lambda: bench.api.get(job))
    unit(bench)
    one_pod = {"engine": {"tensorParallelSize": None}}
    bench.api.patch(own, {"spec": one_pod})
    bench.until("a Deployment", lambda: bench.items(*deployments))

    known: set[str] = set()
    for number in range(5):  # more than any history of revisions keeps
        names = {item["metadata"]["name"] for item in bench.items(*deployments)}
        known |= names
        bench.api.patch(own, {"spec": {"image": f"quire/runtime:{number}"}})
        bench.until("a new revision", lambda names=names: {
            item["metadata"]["name"] for item in bench.items(*deployments)} - names)  # fmt: skip
    bench.until(
        "an old revision is gone", lambda: known - {item["metadata"]["name"] for item in bench.items(*deployments)}
    )
    bench.until("and the units", lambda: not bench.items("/apis/apps/v1", "statefulsets"))

    def commands() -> Any:
        return (bench.api.get(own) or {})["metadata"].get("annotations", {}).get("quire.dev/rollout")

    bench.api.patch(own, {"metadata": {"annotations": {"quire.dev/rollout": "retry"}}})
    bench.until("the command is carried out and removed", lambda: commands() is None)

    uid = (bench.api.get(job) or {})["metadata"]["uid"]
    bench.api.patch(bench.path(GROUP, "modelcaches", "llama"), {"spec": {"model": {"tokenSecretRef": {"name": "hf"}}}})
    bench.until("another Job", lambda: (bench.api.get(job) or {}).get("metadata", {}).get("uid", uid) != uid)

    less: dict[str, Any] = {
        "model": {"source": "hf://org/name", "cache": None},
        "networkPolicy": {"enabled": False},
        "serviceAccountName": "mine",
        "autoscaling": {
            "minReplicas": 0,
            "maxReplicas": 2,
            "targets": {"queueSize": "4"},
        },  # the routers are asked, too
    }
    hpa = bench.path("/apis/autoscaling/v2", "horizontalpodautoscalers", "smol")
    before = bench.updated("smol")
    bench.api.patch(own, {"spec": less})
    bench.until("the last revision", lambda: bench.updated("smol") != before)
    bench.arrive("smol")  # what was kept for the way back is not needed any more
    bench.until("the autoscaler", lambda: bench.api.get(hpa))
    bench.until(
        "the claim is let go",
        lambda: "deletionTimestamp" in ((bench.api.get(claim) or {}).get("metadata") or {"deletionTimestamp": ""}),
    )
    bench.until("no policy", lambda: not bench.items("/apis/networking.k8s.io/v1", "networkpolicies"))
    bench.until("no account", lambda: not bench.items("/api/v1", "serviceaccounts"))
    routers = ("discovery.k8s.io", "endpointslices", "list")
    bench.until("the routers are asked", lambda: routers in used(bench.api.audited(user=bench.user)))
    bench.api.patch(own, {"spec": {"autoscaling": None}})
    bench.until("no autoscaler", lambda: bench.api.get(hpa) is None)


def refused(events: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(event["verb"], event["requestURI"]) for event in events if event["responseStatus"]["code"] in (401, 403)}


@contextmanager
def router_process(bench: OperatorProcess, folder: Path) -> Iterator[None]:
    """A router beside an operator, set up as the chart does, ready."""
    (folder / "router").write_text(json.dumps(bench.api.kubeconfig(ROUTER)))
    port = free_port()
    own = {"HOST": "127.0.0.1", "PORT": str(port), "METRICS_PORT": "0", "PRE_DRAIN_S": "0", "DRAIN_TIMEOUT_S": "0"}
    environment = {
        **os.environ,
        "KUBECONFIG": str(folder / "router"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        **variables(bench.objects, "router"),
        **{f"QUIRE_ROUTER_{name}": value for name, value in own.items()},
    }

    def ready() -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{port}/health/ready", trust_env=False).status_code == 200
        return False

    process = subprocess.Popen([sys.executable, "-m", "quire_router"], env=environment)
    try:
        bench.until("the router is ready", ready)
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0


def test_in_some_namespaces_every_right_is_used_and_none_is_missing(api: RealApi, tmp_path: Path) -> None:
    elsewhere = api.namespace()
    with operator_process(api, tmp_path) as bench, router_process(bench, tmp_path):
        live_through(bench)
        for user, rules in ((bench.user, bench.granted["quire-operator"]), (ROUTER, bench.granted["quire-router"])):
            for group, resource, verb in granted(rules):
                about = {"namespace": elsewhere, "group": group, "resource": resource, "verb": verb}
                assert not api.may(user, about), f"{user} may {verb} {resource} elsewhere"
                assert not api.may(user, {**about, "namespace": ""}), f"{user} may {verb} {resource} everywhere"
    events = api.audited(bench.namespace, user=bench.user)
    assert not refused(events)
    assert used(events) == granted(bench.granted["quire-operator"])
    of_the_router = api.audited(bench.namespace, user=ROUTER)
    assert not refused(of_the_router)
    assert used(of_the_router) == granted(bench.granted["quire-router"])


@pytest.fixture
def api_services(api: RealApi) -> Iterator[str]:
    """Where those of custom.metrics.k8s.io are made; gone afterwards, for nobody serves them."""
    where = "/apis/apiregistration.k8s.io/v1/apiservices"
    yield where
    for version in ("v1beta1", "v1beta2"):
        api.client.delete(f"{where}/{version}.custom.metrics.k8s.io")


def trouble(bench: OperatorProcess, folder: Path) -> None:
    """A pod is ready and does not answer, an object is refused, the metrics API is asked by a stranger: all has data that the dashboard
    asks of an operator."""
    bench.until("a revision", lambda: bench.updated("smol"))
    bench.arrive("smol")
    too_much = {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}
    bench.create("LLMDeployment", "llmdeployments", "refused", {"model": HUB, "resources": too_much})
    assert httpx.get(f"{bench.metrics_api}/apis", verify=False, trust_env=False).status_code == 401
    (where := folder / "prometheus").mkdir()
    with prometheus(where, [bench.metrics.split("/")[2]]) as live:
        assert not [query for query in operator_queries() if not live.has(query, deadline_s=30)]


async def test_everywhere_with_the_metrics_api_nothing_is_refused_either(
    api: RealApi, tmp_path: Path, api_services: str
) -> None:
    """What only this mode asks for: the certificate and the aggregator's trust. All else is asked for with the same verbs."""
    with operator_process(api, tmp_path, everywhere=True) as bench, router_process(bench, tmp_path):
        bench.register(api_services)
        model = {"model": HUB, "autoscaling": {"maxReplicas": 2, "targets": {"queueSize": "4"}}}
        bench.create("LLMDeployment", "llmdeployments", "smol", model)
        bench.until("the workload", lambda: bench.items("/apis/apps/v1", "deployments"))
        bench.until("the aggregator trusts it", lambda: all(
            "caBundle" in (api.get(f"{api_services}/{version}.custom.metrics.k8s.io") or {})["spec"]
            for version in ("v1beta1", "v1beta2")))  # fmt: skip
        client = api.lightkube(EVERYWHERE)  # a certificate is renewed when it ends, which no test waits for
        secret = SecretStore(Cluster(client), bench.namespace, "quire-operator-tls")
        values = await secret.read()
        assert values is not None and await secret.write(values)
        await client.close()
        trouble(bench, tmp_path)
    events = api.audited(user=EVERYWHERE)
    assert not refused(events)
    only_here = {(group, resource, verb) for group, resource, verb in granted(bench.granted["quire-operator"])
                 if resource in ("secrets", "apiservices")}  # fmt: skip
    assert only_here and only_here | {("", "configmaps", "get")} <= used(events)
    of_the_router = api.audited(user=ROUTER)
    assert not refused(of_the_router) and used(of_the_router) == granted(bench.granted["quire-router"])
