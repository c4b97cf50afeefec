"""What was seen in the cluster for one LLMDeployment, reduced to what decisions need.

Bodies come as plain maps from the API server; everything below `cluster` works with these views. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire_operator import labels
from quire_operator.spec import Key

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Observation:
    """One consistent-enough look: read after every write of ours, never from a cache."""

    body: Body
    deployments: Sequence[Body]
    pods: Sequence[Body]
    service: Body | None
    """Of the LLMDeployment's name, whoever made it; so is the next."""
    hpa: Body | None

    @property
    def own_hpa(self) -> Body | None:
        """The HorizontalPodAutoscaler, if it is a child of this LLMDeployment."""
        return self.hpa if self.hpa is not None and owned_by(self.hpa, self.body["metadata"]["uid"]) else None

    @property
    def key(self) -> Key:
        metadata = self.body["metadata"]
        return Key(metadata["namespace"], metadata["name"])


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
    ready = not terminating and condition_status(status, "Ready") == "True"
    return PodView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        revision=marks.get(labels.REVISION, ""),
        track=marks.get(labels.TRACK, ""),
        labels=marks,
        ip=status.get("podIP"),
        ready=ready,
        terminating=terminating,
        crashing=not ready and not terminating and _restarts(status) >= CRASHES,
        body=body,
    )


def _restarts(status: Body) -> int:
    kinds = ("initContainerStatuses", "containerStatuses")
    return max((item.get("restartCount", 0) for kind in kinds for item in status.get(kind) or ()), default=0)


def workload_views(deployments: Sequence[Body]) -> tuple[WorkloadView, ...]:
    """By name."""
    return tuple(sorted((_workload_view(body) for body in deployments), key=lambda view: view.name))


def _workload_view(body: Body) -> WorkloadView:
    metadata = body["metadata"]
    failure = find_condition(body.get("status", {}), "ReplicaFailure")
    notes = metadata.get("annotations") or {}
    return WorkloadView(
        name=metadata["name"],
        revision=metadata.get("labels", {}).get(labels.REVISION, ""),
        desired=body.get("spec", {}).get("replicas", 1),
        created=metadata.get("creationTimestamp", ""),
        failure=failure.get("message") if failure is not None and failure.get("status") == "True" else None,
        intent=notes.get(labels.INTENT_HASH, ""),
        model=notes.get(labels.MODEL),
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
