"""The chart's rights against what the operator really asks for: nothing is refused, and no verb is granted for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operator_process import GROUP, OperatorProcess, operator_process
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

HUB = {"source": "hf://org/name", "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}
FULL: dict[str, Any] = {
    "model": HUB,
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
        where = event["objectRef"]
        resource = "/".join(filter(None, (where["resource"], where.get("subresource"))))
        found.add((where.get("apiGroup", ""), resource, event["verb"]))
        if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
            found.add((where.get("apiGroup", ""), resource, "create"))
    return found


def updated(bench: OperatorProcess) -> str | None:
    """The revision that is wanted, as the status tells."""
    return ((bench.api.get(bench.path(GROUP, "llmdeployments", "smol")) or {}).get("status") or {}).get(
        "updatedRevision"
    )


def arrive(bench: OperatorProcess) -> None:
    """A pod of the wanted revision is ready: what was kept for the way back is not needed any more."""
    workload = bench.api.get(bench.path("/apis/apps/v1", "deployments", f"smol-{updated(bench)}"))
    assert workload is not None
    metadata = {"name": "arrived", "labels": workload["spec"]["template"]["metadata"]["labels"]}
    pods = bench.path("/api/v1", "pods")
    body = {"metadata": metadata, "spec": {"containers": [{"name": "engine", "image": "x"}]}}
    answer = bench.api.create(pods, body, dry_run=False)
    assert answer.status_code == 201, answer.text
    ready = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    bench.api.patch(f"{pods}/arrived/status", {"status": ready})


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

    first = {item["metadata"]["name"] for item in bench.items(*deployments)}
    for number in range(5):  # more than any history of revisions keeps
        names = {item["metadata"]["name"] for item in bench.items(*deployments)}
        bench.api.patch(own, {"spec": {"image": f"quire/runtime:{number}"}})
        bench.until("a new revision", lambda names=names: {
            item["metadata"]["name"] for item in bench.items(*deployments)} - names)  # fmt: skip
    bench.until(
        "the first revision is gone",
        lambda: not first & {item["metadata"]["name"] for item in bench.items(*deployments)},
    )

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
        "autoscaling": {"maxReplicas": 2, "targets": {"queueSize": "4"}},
    }
    hpa = bench.path("/apis/autoscaling/v2", "horizontalpodautoscalers", "smol")
    before = updated(bench)
    bench.api.patch(own, {"spec": less})
    bench.until("the last revision", lambda: updated(bench) != before)
    arrive(bench)
    bench.until("the autoscaler", lambda: bench.api.get(hpa))
    bench.until(
        "the claim is let go",
        lambda: "deletionTimestamp" in ((bench.api.get(claim) or {}).get("metadata") or {"deletionTimestamp": ""}),
    )
    bench.until("no policy", lambda: not bench.items("/apis/networking.k8s.io/v1", "networkpolicies"))
    bench.until("no account", lambda: not bench.items("/api/v1", "serviceaccounts"))
    bench.api.patch(own, {"spec": {"autoscaling": None}})
    bench.until("no autoscaler", lambda: bench.api.get(hpa) is None)


def test_every_right_is_used_and_none_is_missing(api: RealApi, tmp_path: Path) -> None:
    with operator_process(api, tmp_path) as bench:
        live_through(bench)
    events = api.audited(bench.namespace)
    refused = {
        (event["verb"], event["requestURI"]) for event in events if event["responseStatus"]["code"] in (401, 403)
    }
    assert not refused
    assert used(events) == granted(bench.rules)
