"""What was seen in the cluster for one LLMDeployment, reduced to what decisions need.

Bodies come as plain maps from the API server; everything below `cluster` works with these views. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from quire_operator import labels
from quire_operator.spec import Key

Body = Mapping[str, Any]
WorkloadKind = Literal["Deployment", "StatefulSet", "LeaderWorkerSet"]


@dataclass(frozen=True)
class Observation:
    """One consistent-enough look: read after every write of ours, never from a cache."""

    body: Body
    deployments: Sequence[Body]
    pods: Sequence[Body]
    service: Body | None
    """Of the LLMDeployment's name, whoever made it; so is the next."""
    hpa: Body | None
    sets: Sequence[Body] = ()
    """StatefulSets, of leaders and of workers."""
    groups: Sequence[Body] = ()
    """LeaderWorkerSets."""
    model_cache: Body | None = None
    """The ModelCache that the LLMDeployment names, if it names one."""

    @property
    def workloads(self) -> list[Body]:
        """One of each revision, whatever its kind."""
        return [*self.deployments, *self.groups, *(each for each in self.sets if role_of(each) == labels.LEADER)]

    @property
    def workers(self) -> list[Body]:
        """One StatefulSet for each unit, but for LeaderWorkerSets."""
        return [each for each in self.sets if role_of(each) == labels.WORKER]

    @property
    def own_hpa(self) -> Body | None:
        """The HorizontalPodAutoscaler, if it is a child of this LLMDeployment."""
        return self.hpa if self.hpa is not None and owned_by(self.hpa, self.body["metadata"]["uid"]) else None

    @property
    def key(self) -> Key:
        metadata = self.body["metadata"]
        return Key(metadata["namespace"], metadata["name"])


_LEADER = labels.LEADER


@dataclass(frozen=True)
class PodView:
    """One pod that is neither finished nor failed. `body` is there for reasons and messages only."""

    name: str
    namespace: str
    revision: str
    track: str
    labels: Mapping[str, str]
    ip: str | None
    ready: bool
    terminating: bool
    crashing: bool
    """One of its containers keeps ending by itself, and it is not ready."""
    body: Body = field(repr=False, compare=False)
    ready_at: str | None = None
    """Since when, as its kubelet says; None where it says nothing."""
    restarts: int = 0
    """Of the container that restarted most, those that have done their work left out."""
    uid: str = ""
    role: str = _LEADER
    unit: int | None = None
    """Index of the unit of pods that it belongs to; None where a replica is one pod."""
    containers_ready: bool = False
    gate: bool = False
    """It says that the whole unit is ready."""
    engine_restarts: int = 0


@dataclass(frozen=True)
class WorkloadView:
    """One Deployment of ours."""

    name: str
    revision: str
    desired: int
    created: str
    failure: str | None
    intent: str = ""
    model: str | None = None
    kind: WorkloadKind = "Deployment"

    @property
    def ordered(self) -> bool:
        """It shrinks from the end, whatever is ready there."""
        return self.kind != "Deployment"


CRASHES = 3
"""Restarts after which a container that is not ready counts as one that keeps crashing: about a minute."""


def pod_views(pods: Sequence[Body]) -> tuple[PodView, ...]:
    """By name; finished pods are left out, those being deleted are not."""
    views = [pod_view(body) for body in pods if body.get("status", {}).get("phase") not in ("Succeeded", "Failed")]
    return tuple(sorted(views, key=lambda view: view.name))


def pod_view(body: Body) -> PodView:
    """Of one pod, whatever its phase."""
    metadata, status = body["metadata"], body.get("status", {})
    marks = metadata.get("labels", {})
    terminating = "deletionTimestamp" in metadata
    told = find_condition(status, "Ready")
    ready = not terminating and told is not None and told["status"] == "True"
    restarts = _restarts(status)
    inside = find_condition(status, "ContainersReady")
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        revision=marks.get(labels.REVISION, ""),
        track=marks.get(labels.TRACK, ""),
        labels=marks,
        ip=status.get("podIP"),
        ready=ready,
        terminating=terminating,
        crashing=not ready and not terminating and restarts >= CRASHES,
        body=body,
        ready_at=told.get("lastTransitionTime") if told is not None and ready else None,
        restarts=restarts,
        uid=metadata.get("uid", ""),
        role=marks.get(labels.ROLE, _LEADER),
        unit=_unit(marks),
        containers_ready=inside is not None and inside["status"] == "True",
        gate=condition_status(status, labels.UNIT_READY) == "True",
        engine_restarts=max((item.get("restartCount", 0) for item in status.get("containerStatuses") or ()), default=0),
    )


def _unit(marks: Mapping[str, str]) -> int | None:
    told = marks.get(labels.UNIT) or marks.get(labels.LWS_UNIT) or marks.get("apps.kubernetes.io/pod-index")
    return int(told) if told is not None and told.isdecimal() else None


def _restarts(status: Body) -> int:
    items = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    return max((item.get("restartCount", 0) for item in items if not _done(item)), default=0)


def _done(item: Body) -> bool:
    """A container that ended well: what it took to get there says nothing of the pod now."""
    ended = (item.get("state") or {}).get("terminated")
    return ended is not None and ended.get("exitCode") == 0


def workload_views(workloads: Sequence[Body]) -> tuple[WorkloadView, ...]:
    """By name."""
    return tuple(sorted((_workload_view(body) for body in workloads), key=lambda view: view.name))


def kind_of(workload: Body) -> WorkloadKind:
    """Items of a list carry no kind; what they are is seen in their spec."""
    spec = workload.get("spec", {})
    if "leaderWorkerTemplate" in spec:
        return "LeaderWorkerSet"
    return "StatefulSet" if "serviceName" in spec else "Deployment"


def marks_of(workload: Body) -> Mapping[str, str]:
    """The labels that say what a workload is, as its selector has them: that never changes, while anybody may edit its own labels.

    A LeaderWorkerSet has no selector; there it is the labels of its leaders.
    """
    spec = workload.get("spec", {})
    told: Mapping[str, str] = (spec.get("selector") or {}).get("matchLabels") or (
        (pod_template_of(workload).get("metadata") or {}).get("labels") or {}
    )
    return {key: told[key] for key in (labels.DEPLOYMENT, labels.REVISION, labels.ROLE, labels.UNIT) if key in told}


def revision_of_workload(workload: Body) -> str:
    """Empty where it says nothing."""
    return marks_of(workload).get(labels.REVISION, "")


def role_of(workload: Body) -> str:
    """What says nothing answers requests."""
    return marks_of(workload).get(labels.ROLE, labels.LEADER)


def unit_size_of(workload: Body) -> int:
    """Pods of each replica, as the pods themselves are told."""
    kind = kind_of(workload)
    if kind == "Deployment":
        return 1
    told = (
        workload["spec"]["leaderWorkerTemplate"].get("size", 1) if kind == "LeaderWorkerSet" else _told_size(workload)
    )
    return max(int(told), 1) if str(told).isdecimal() else 1


def _told_size(leaders: Body) -> str:
    for container in pod_template_of(leaders)["spec"]["containers"]:
        for variable in container.get("env") or ():
            if container["name"] == labels.CONTAINER and variable["name"] == labels.UNIT_SIZE_VARIABLE:
                return str(variable.get("value"))
    return ""


def pod_template_of(workload: Body) -> Body:
    """Of the pods that answer requests."""
    spec: Body = workload["spec"]
    template: Body = (
        spec["leaderWorkerTemplate"]["leaderTemplate"] if "leaderWorkerTemplate" in spec else spec["template"]
    )
    return template


def _workload_view(body: Body) -> WorkloadView:
    metadata = body["metadata"]
    failure = find_condition(body.get("status", {}), "ReplicaFailure")
    notes = metadata.get("annotations") or {}
    return WorkloadView(
        name=metadata["name"],
        revision=revision_of_workload(body),
        desired=body.get("spec", {}).get("replicas", 1),
        created=metadata.get("creationTimestamp", ""),
        failure=failure.get("message") if failure is not None and failure.get("status") == "True" else None,
        intent=notes.get(labels.INTENT_HASH, ""),
        model=notes.get(labels.MODEL),
        kind=kind_of(body),
    )


def owned_by(body: Body, uid: str) -> bool:
    """Whether an object is a child of the one with that uid."""
    return any(owner.get("uid") == uid for owner in body["metadata"].get("ownerReferences", ()))


def find_condition(status: Body, kind: str) -> Body | None:
    """The condition of that type, in any Kubernetes status."""
    conditions: Sequence[Body] = status.get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), None)


def condition_status(status: Body, kind: str) -> str:
    """`Unknown` where there is no such condition."""
    found = find_condition(status, kind)
    return str(found["status"]) if found is not None else "Unknown"
