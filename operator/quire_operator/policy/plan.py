"""From what is seen to what should be done with the workloads now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from quire_operator.api import INDEFINITE, Spec, Status, seconds
from quire_operator.observation import PodView, WorkloadView
from quire_operator.policy.decide import Decision, decide
from quire_operator.policy.views import Control, Limits, Progress, RevisionView, Situation, Step, Strategy
from quire_operator.resources.deadlines import progress_s
from quire_operator.spec import Deployment

PROVEN_S = 10.0
PROVEN_WHOLE_S = 30.0
"""The same where all requests move at once, so that no pod would be left that knows nothing of the fault."""
PROVEN_AGAIN_S = 60.0
PROVEN_MAX_S = 300.0
"""How long a candidate's pod is ready before it counts; longer after each restart, up to a bound: what failed fails again."""


@dataclass(frozen=True)
class Plan:
    """`size` is for the wanted revision; `resize` and `delete` name others only. `views` are as they will be afterwards."""

    revision: str
    size: int
    resize: tuple[tuple[str, int, int], ...]
    delete: tuple[str, ...]
    views: tuple[RevisionView, ...]
    decision: Decision

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of every revision."""
        return self.decision.sizes


def make_plan(
    owner: Deployment,
    revision: str,
    workloads: Sequence[WorkloadView],
    pods: Sequence[PodView],
    *,
    now: str,
    in_flight: Mapping[str, int] | None = None,
) -> Plan:
    """`resize` holds (revision, from, to). in_flight: requests by name of pod, as far as the pods said."""
    at_once = owner.spec.rollout.strategy == "BlueGreen"
    seen = revision_views(
        workloads,
        pods,
        owner.status,
        in_flight or {},
        now=to_seconds(now),
        proven_s=PROVEN_WHOLE_S if at_once else PROVEN_S,
    )
    decision = decide(
        Situation(
            target=revision,
            wanted=owner.wanted_replicas,
            views=seen,
            strategy=strategy_of(owner.spec),
            now=to_seconds(now),
            stable=owner.status.current_revision,
            progress=progress_of(owner.status),
            control=control_of(owner.status),
            command=owner.command,
        )
    )
    sizes = decision.sizes
    others = [view for view in seen if view.name != revision]
    resize = tuple((view.name, view.desired, sizes[view.name]) for view in others if sizes[view.name] != view.desired)
    known = {view.name for view in seen}
    missing = () if revision in known else (RevisionView(revision, 0, 0, 0),)
    after = tuple(
        replace(view, desired=sizes[view.name]) for view in (*missing, *seen) if view.name not in decision.delete
    )
    return Plan(revision, sizes[revision], resize, decision.delete, after, decision)


def revision_views(
    workloads: Sequence[WorkloadView],
    pods: Sequence[PodView],
    status: Status,
    in_flight: Mapping[str, int],
    *,
    now: float,
    proven_s: float = PROVEN_S,
) -> tuple[RevisionView, ...]:
    """One per workload; `ready` leaves out pods that are being deleted."""
    told = {revision.name: revision for revision in status.revisions}

    def one(workload: WorkloadView) -> RevisionView:
        mine = [pod for pod in pods if pod.revision == workload.revision]
        ready = [pod.name for pod in mine if pod.ready]
        before = told.get(workload.revision)
        return RevisionView(
            name=workload.revision,
            desired=workload.desired,
            ready=len(ready),
            pods=len(mine),
            created=workload.created,
            crashing=any(pod.crashing for pod in mine),
            in_flight=sum(in_flight[name] for name in ready) if all(name in in_flight for name in ready) else None,
            weight=(before.weight or 0) if before is not None else 0,
            unrouted_at=to_seconds(before.unrouted_at) if before is not None and before.unrouted_at else None,
            settling=tuple(left for pod in mine if pod.ready and (left := settling_s(pod, now, proven_s)) > 0),
            places={pod.unit: settling_s(pod, now, proven_s) == 0 for pod in mine if pod.ready and pod.unit is not None}
            if workload.ordered
            else None,
            fallen=sum(
                pod.restarts > 0 and not pod.terminating and not (pod.ready and settling_s(pod, now, proven_s) == 0)
                for pod in mine
            ),
        )

    return tuple(one(workload) for workload in workloads)


def settling_s(pod: PodView, now: float, proven_s: float = PROVEN_S) -> float:
    """Seconds until a ready pod has proven itself; 0 where nobody knows since when it is ready."""
    if pod.ready_at is None:
        return 0.0
    enough = min(PROVEN_AGAIN_S * pod.restarts, PROVEN_MAX_S) if pod.restarts else proven_s
    # Absolute: the clock of a node that is ahead must not hold a rollout for as long as it is.
    return max(enough - abs(now - to_seconds(pod.ready_at)), 0.0)


def strategy_of(spec: Spec) -> Strategy:
    """spec.rollout in numbers."""
    rollout = spec.rollout
    steps: tuple[Step, ...] = ()
    if rollout.strategy == "Canary" and rollout.canary is not None:
        steps = tuple(Step(step.weight, _pause_s(step.pause)) for step in rollout.canary.steps)
    elif rollout.strategy == "BlueGreen":
        steps = (Step(0, _pause_s(rollout.blue_green.pause)),)
    return Strategy(
        # Canary without steps is refused at admission; an object stored before that rule rolls plainly.
        name="RollingUpdate" if rollout.strategy == "Canary" and not steps else rollout.strategy,
        limits=Limits(rollout.max_surge, rollout.max_unavailable),
        steps=steps,
        deadline_s=progress_s(spec),
        drain_s=seconds(rollout.drain_timeout),
        keep_old_s=seconds(rollout.blue_green.scale_down_delay),
        history=rollout.revision_history_limit,
    )


def to_seconds(text: str) -> float:
    """Seconds since 1970 of a time as the API writes it."""
    return datetime.fromisoformat(text).timestamp()


def to_text(at: float) -> str:
    """The other way round; whole seconds."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pause_s(pause: str) -> float | None:
    return None if pause == INDEFINITE else float(seconds(pause))


def progress_of(status: Status) -> Progress | None:
    """The rollout under way, as the status tells."""
    told = status.rollout
    if told is None or told.revision is None:
        return None
    return Progress(
        revision=told.revision,
        started=to_seconds(told.started_at),
        progressed=to_seconds(told.progressed_at),
        step=max((told.step or 1) - 1, 0),
        step_since=to_seconds(told.step_at) if told.step_at else None,
        peak=told.peak,
        broken_since=to_seconds(told.broken_at) if told.broken_at else None,
    )


def control_of(status: Status) -> Control:
    """What people asked for, as the status keeps it."""
    told = status.control
    if told is None:
        return Control()
    return Control(bool(told.paused), told.aborted, told.why, told.promoted, told.handled)
