"""Replicas that are units of several pods, a leader and its workers: the objects of a revision whose replicas are such units. Pure.

Of our own: one StatefulSet of leaders for the revision, its size the number of units, one StatefulSet of workers for each unit, and the
headless Service of `supplies` for the names of all. Or one LeaderWorkerSet for the revision, where the cluster has that kind. Names of pods and what a pod
is told (LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX) are the same in both.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from quire_operator import labels
from quire_operator.observation import Body, PodView, WorkloadKind, revision_of_workload, unit_size_of
from quire_operator.resources.deployment import build_deployment, workload_name
from quire_operator.resources.meta import bounded, child_metadata
from quire_operator.spec import Deployment

INDEX = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}}
"""The ordinal of a pod of a StatefulSet (Kubernetes 1.28)."""


def build_workload(
    owner: Deployment,
    revision: str,
    template: dict[str, Any],
    replicas: int,
    *,
    intent: str = "",
    kind: WorkloadKind = "Deployment",
) -> dict[str, Any]:
    """The one object that a revision is sized by; arguments as for `build_deployment`."""
    plain = build_deployment(owner, revision, template, replicas, intent=intent)
    if kind == "Deployment":
        return plain
    metadata = plain["metadata"]
    metadata["annotations"] = {**metadata.get("annotations", {}), labels.UNIT_SIZE: str(owner.unit_size)}
    pod = _leader(plain["spec"]["template"])
    if kind == "LeaderWorkerSet":
        return {
            "apiVersion": f"{labels.LWS_GROUP}/v1",
            "kind": kind,
            "metadata": metadata,
            "spec": {
                "replicas": replicas,
                "startupPolicy": "LeaderCreated",
                "networkConfig": {"subdomainPolicy": "Shared"},
                "leaderWorkerTemplate": {
                    "size": owner.unit_size,
                    "restartPolicy": "RecreateGroupOnPodRestart",
                    "leaderTemplate": pod,
                    "workerTemplate": _worker(pod),
                },
            },
        }
    here = f"$(POD_NAME).{labels.unit_service(owner.name)}.{owner.namespace}"
    env: list[dict[str, Any]] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "LWS_LEADER_ADDRESS", "value": here},
        {"name": labels.UNIT_SIZE_VARIABLE, "value": str(owner.unit_size)},
        {"name": "LWS_WORKER_INDEX", "value": "0"},
    ]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "serviceName": labels.unit_service(owner.name),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": plain["spec"]["selector"],
            "template": _told(pod, env),
        },
    }


def build_workers(owner: Deployment, leaders: Body, unit: int) -> dict[str, Any]:
    """The workers of one unit, from the leaders' StatefulSet as it is: old revisions have no other template."""
    size, revision = unit_size_of(leaders), revision_of_workload(leaders)
    service = leaders["spec"]["serviceName"]
    leader = f"{leaders['metadata']['name']}-{unit}"
    env: list[dict[str, Any]] = [
        {"name": "LWS_LEADER_ADDRESS", "value": f"{leader}.{service}.{owner.namespace}"},
        {"name": labels.UNIT_SIZE_VARIABLE, "value": str(size)},
        {"name": "LWS_WORKER_INDEX", **INDEX},
    ]
    marks = {labels.REVISION: revision, labels.ROLE: labels.WORKER, labels.UNIT: str(unit)}
    pod = _told(_worker(leaders["spec"]["template"]), env)
    pod["metadata"]["labels"][labels.UNIT] = str(unit)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": child_metadata(
            owner, unit_workers_name(owner.name, revision, unit), {**marks, labels.TRACK: labels.STABLE}
        ),
        "spec": {
            "replicas": size - 1,
            "ordinals": {"start": 1},
            "serviceName": service,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {labels.DEPLOYMENT: owner.name, **marks}},
            "template": pod,
        },
    }


def unit_workers_name(owner_name: str, revision: str, unit: int) -> str:
    """Of the StatefulSet of a unit's workers: as its leader's pod is called, shortened where that is too long (40 characters and unit 100)."""
    return bounded(f"{workload_name(owner_name, revision)}-{unit}", labels.STATEFUL_SET_NAME_MAX)


def workload_of(owner_name: str, pod: PodView) -> tuple[WorkloadKind, str] | None:
    """Kind and name of what made a pod, by the pod's labels; None where that is not of ours, or not said."""
    grouped = labels.LWS_UNIT in pod.labels
    if not pod.revision or (pod.role != labels.LEADER and (grouped or pod.unit is None)):
        return None
    if pod.role != labels.LEADER and pod.unit is not None:
        return "StatefulSet", unit_workers_name(owner_name, pod.revision, pod.unit)
    kind: WorkloadKind = "LeaderWorkerSet" if grouped else "Deployment" if pod.unit is None else "StatefulSet"
    return kind, workload_name(owner_name, pod.revision)


def _leader(template: Mapping[str, Any]) -> dict[str, Any]:
    """Ready when the whole unit is."""
    out = copy.deepcopy(dict(template))
    out["spec"]["readinessGates"] = [*out["spec"].get("readinessGates", ()), {"conditionType": labels.UNIT_READY}]
    return out


def _worker(leader: Mapping[str, Any]) -> dict[str, Any]:
    """The same pod, which no request reaches. It does not wait for the unit: the unit waits for it."""
    out = copy.deepcopy(dict(leader))
    out["metadata"] = {key: value for key, value in out["metadata"].items() if key in ("labels", "annotations")}
    out["metadata"]["labels"][labels.ROLE] = labels.WORKER
    gates = [each for each in out["spec"].pop("readinessGates", ()) if each["conditionType"] != labels.UNIT_READY]
    if gates:
        out["spec"]["readinessGates"] = gates
    for spread in out["spec"].get("topologySpreadConstraints", ()):
        matched = (spread.get("labelSelector") or {}).get("matchLabels") or {}
        if matched.get(labels.ROLE) == labels.LEADER:
            matched[labels.ROLE] = labels.WORKER
    return out


def _told(template: Mapping[str, Any], env: list[dict[str, Any]]) -> dict[str, Any]:
    """With these variables in the engine, in place of those of the same name."""
    out, names = copy.deepcopy(dict(template)), {each["name"] for each in env}
    for container in out["spec"]["containers"]:
        if container["name"] == labels.CONTAINER:
            kept = [each for each in container.get("env", ()) if each["name"] not in names | {"POD_NAME"}]
            container["env"] = [*kept, *copy.deepcopy(env)]
    return out
