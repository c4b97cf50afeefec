"""Kubernetes Events out of a change of status: one when a reason appears, none while it stays. Pure.

Because the old status is what the API server stores, a restart of the operator repeats nothing. A reason that comes, goes and comes again while
its condition stays as false as it was (two pods that fail in turn) is told once: `occasion`, which becomes the name of the Event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from quire_operator.api import Condition, Status
from quire_operator.status.problems import KILLED


@dataclass(frozen=True)
class Event:
    """One entry of `kubectl describe`. What happened is told once: two with the same `occasion` are of one happening; empty: each is of its own."""

    kind: Literal["Normal", "Warning"]
    reason: str
    message: str
    action: str = "Reconcile"
    occasion: str = ""


_QUIET = frozenset(
    {
        "Loading",
        KILLED,
        "Verifying",
        "RollingOut",
        "ScaledToZero",
        "NoPods",
        "NotYetReported",
        "NotYetMeasured",
        "Paused",
        "StepPaused",
    }
)
"""Reasons that are ordinary on the way: shown as conditions, not worth an event."""

_MOVING = frozenset({"RollingOut", "StepPaused", "Paused", "Draining"})

_NO_EVENTS = frozenset({"Available", "RolloutHealthy", "ModelCached"})
"""What they say is told of Ready, of Progressing, or of the ModelCache."""

_NEED_PODS = frozenset({"MetricsAvailable", "ScalingActive", "AdaptersLoaded"})
"""Without a ready pod there is nothing to measure, and that is told elsewhere."""


def events_between(before: Status, after: Status) -> tuple[Event, ...]:
    """What happened from the one to the other."""
    old = {condition.type: condition for condition in before.conditions}
    serving = any(condition.type == "Available" and condition.status == "True" for condition in after.conditions)
    events = [
        replace(
            event, occasion=f"{condition.type} {condition.last_transition_time} {_amid(after, event)} {event.reason}"
        )
        for condition in after.conditions
        if serving or condition.type not in _NEED_PODS
        for event in _of(old.get(condition.type), condition)
    ]
    return (*_shares(before, after), *events)


def _amid(after: Status, event: Event) -> str:
    """What an event belongs to: the revision whose pod it is about, which may be an old one that is being replaced; else the rollout."""
    names = [revision.name for revision in after.revisions if f"-{revision.name}-" in event.message]
    if names:
        return names[0]
    return f"{after.updated_revision or ''} {after.rollout.started_at if after.rollout is not None else ''}"


def _shares(before: Status, after: Status) -> Iterator[Event]:
    """Where a strategy moves requests from one revision to another, that is an event of its own."""
    if after.rollout is None or after.rollout.strategy not in ("Canary", "BlueGreen") or len(after.revisions) < 2:
        return
    old = {revision.name: revision.weight or 0 for revision in before.revisions}
    now = {revision.name: revision.weight or 0 for revision in after.revisions}
    if any(now.get(name, 0) != old.get(name, 0) for name in now | old) and any(now.values()):
        shares = ", ".join(f"{weight} % to revision {name}" for name, weight in now.items())
        yield Event("Normal", "TrafficMoved", f"requests go {shares}", "Roll")


def _of(before: Condition | None, after: Condition) -> Iterator[Event]:
    changed = before is None or (before.status, before.reason) != (after.status, after.reason)
    if not changed or after.type in _NO_EVENTS:
        return
    if after.status == "True":
        recovered = before is not None and before.status == "False"
        if after.type == "Ready" and (before is None or before.status != "True"):
            yield Event("Normal", "Ready", after.message)
        elif after.type in _NEED_PODS and recovered:
            yield Event("Normal", f"{after.type}Again", after.message)
    elif after.status == "False" and after.reason not in _QUIET:
        if after.type == "Progressing":
            if after.reason == "Complete":
                if before is not None and before.reason in _MOVING:
                    yield Event("Normal", "RolloutComplete", after.message)
                return
            if after.reason in ("ApplyFailed", "RolloutAborted"):
                return  # so does it here
        yield Event("Warning", after.reason, after.message)
