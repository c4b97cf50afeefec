"""From what is seen to what should be done with the workloads now. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire_operator.observation import PodView, WorkloadView
from quire_operator.policy.rolling import Limits, RevisionView, next_replicas
from quire_operator.spec import Deployment


@dataclass(frozen=True)
class Plan:
    """`size` is for the wanted revision; `resize` and `delete` name old revisions only."""

    revision: str
    size: int
    resize: tuple[tuple[str, int, int], ...]
    delete: tuple[str, ...]
    views: tuple[RevisionView, ...]
    """As they will be once the plan is carried out."""


def make_plan(owner: Deployment, revision: str, workloads: Sequence[WorkloadView], pods: Sequence[PodView]) -> Plan:
    """`resize` holds (revision, from, to)."""
    seen = revision_views(workloads, pods)
    rollout = owner.spec.rollout
    limits = Limits(rollout.max_surge, rollout.max_unavailable, rollout.strategy)
    sizes = next_replicas(revision, owner.wanted_replicas, seen, limits)
    old = [view for view in seen if view.name != revision]
    delete = tuple(view.name for view in old if view.desired == 0 and view.pods == 0)
    resize = tuple((view.name, view.desired, sizes[view.name]) for view in old if sizes[view.name] != view.desired)
    known = {view.name for view in seen}
    missing = () if revision in known else (RevisionView(revision, 0, 0, 0),)
    after = tuple(replace(view, desired=sizes[view.name]) for view in (*missing, *seen) if view.name not in delete)
    return Plan(revision, sizes[revision], resize, delete, after)


def revision_views(workloads: Sequence[WorkloadView], pods: Sequence[PodView]) -> tuple[RevisionView, ...]:
    """One per workload; `ready` leaves out pods that are being deleted."""
    return tuple(
        RevisionView(
            name=workload.revision,
            desired=workload.desired,
            ready=sum(pod.ready for pod in pods if pod.revision == workload.revision),
            pods=sum(pod.revision == workload.revision for pod in pods),
            created=workload.created,
        )
        for workload in workloads
    )
