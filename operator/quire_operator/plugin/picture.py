"""What `status` shows of one LLMDeployment, from the object and its pods. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from quire_operator.api import Condition, MetricStatus, RevisionStatus
from quire_operator.observation import Body, PodView, pod_view
from quire_operator.policy import to_seconds
from quire_operator.spec import Deployment, parse
from quire_operator.status.problems import problem_of

BY_WEIGHT = ("Canary", "BlueGreen")


@dataclass(frozen=True)
class PodLine:
    """One pod. `state` is one word; `why` says more where something is wrong."""

    name: str
    revision: str
    ready: bool
    state: str
    why: str
    restarts: int
    age_s: float
    node: str


@dataclass(frozen=True)
class Bar:
    """How far a rollout, or a change of size, is. `weight`: percent of the requests; None where each pod takes its share."""

    revision: str
    strategy: str
    ready: int
    wanted: int
    weight: int | None
    step: int | None
    of: int | None
    age_s: float
    message: str


@dataclass(frozen=True)
class Picture:
    """ready: the newest edit is seen by the operator, and its Ready condition is True."""

    name: str
    namespace: str
    ready: bool
    phase: str
    seen: bool
    source: str
    models: tuple[str, ...]
    url: str | None
    summary: str
    paused: bool
    aborted: str | None
    command: str | None
    conditions: tuple[Condition, ...]
    revisions: tuple[RevisionStatus, ...]
    stable: str | None
    bar: Bar | None
    metrics: tuple[MetricStatus, ...]
    pods: tuple[PodLine, ...]

    def condition(self, kind: str) -> Condition | None:
        """The one of that type."""
        return next((each for each in self.conditions if each.type == kind), None)

    def to_json(self) -> dict[str, Any]:
        """For scripts: names as in the status, nothing left out."""
        told = asdict(self)
        told["rollout"] = told.pop("bar")
        for name in ("conditions", "revisions", "metrics"):
            told[name] = [each.model_dump(by_alias=True, exclude_none=True) for each in getattr(self, name)]
        return told


def picture_of(body: Body, pods: Sequence[Body], *, now: float) -> Picture:
    """Raises SpecError for an object that this release cannot read. now: seconds since 1970."""
    owner = parse(body)
    status = owner.status
    ready = next((each for each in status.conditions if each.type == "Ready"), None)
    seen = status.observed_generation == owner.generation
    control = status.control
    return Picture(
        name=owner.name,
        namespace=owner.namespace,
        ready=ready is not None and ready.status == "True" and ready.observed_generation == owner.generation,
        phase=status.phase or "Unseen",
        seen=seen,
        source=owner.spec.model.source,
        models=owner.model_names,
        url=status.url,
        summary=status.summary or f"0/{owner.wanted_replicas}",
        paused=control is not None and bool(control.paused),
        aborted=control.aborted if control is not None else None,
        command=owner.command,
        conditions=status.conditions,
        revisions=status.revisions,
        stable=status.current_revision,
        bar=_bar(owner, now),
        metrics=status.autoscaling.metrics if status.autoscaling is not None else (),
        pods=tuple(_pod_line(pod, now) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))),
    )


def _bar(owner: Deployment, now: float) -> Bar | None:
    rollout = owner.status.rollout
    if rollout is None:
        return None
    goal = next((each for each in owner.status.revisions if each.name == rollout.revision), None)
    strategy = rollout.strategy or owner.spec.rollout.strategy
    moving = rollout.revision != owner.status.current_revision
    return Bar(
        revision=rollout.revision or "",
        strategy=strategy,
        ready=goal.ready if goal is not None else 0,
        wanted=owner.wanted_replicas,
        weight=(goal.weight or 0 if goal is not None else 0) if strategy in BY_WEIGHT and moving else None,
        step=min(rollout.step, rollout.of) if rollout.step is not None and rollout.of is not None else None,
        of=rollout.of,
        age_s=max(now - to_seconds(rollout.started_at), 0.0),
        message=rollout.message,
    )


def _pod_line(body: Body, now: float) -> PodLine:
    view = pod_view(body)
    problem = problem_of((view,), view.revision)
    status = body.get("status", {})
    statuses = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return PodLine(
        name=view.name,
        revision=view.revision,
        ready=view.ready,
        state=problem.reason if problem is not None else _state(view),
        why=problem.message if problem is not None else "",
        restarts=sum(each.get("restartCount", 0) for each in statuses),
        age_s=max(now - to_seconds(body["metadata"]["creationTimestamp"]), 0.0),
        node=body.get("spec", {}).get("nodeName", ""),
    )


def _state(view: PodView) -> str:
    if view.terminating:
        return "Terminating"
    if view.ready:
        return "Ready"
    status = view.body.get("status", {})
    for container in status.get("initContainerStatuses") or ():
        if "running" in container.get("state", {}):
            return f"Init:{container['name']}"
    phase = str(status.get("phase", "Unknown"))
    return "Loading" if phase == "Running" else phase
