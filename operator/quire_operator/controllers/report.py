"""What the small kinds report alike: one condition, whose time moves only when its status does. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

from quire_operator.api import Condition
from quire_operator.status import Event


def now_text() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ready_condition(
    before: Sequence[Condition],
    *,
    status: Literal["True", "False", "Unknown"],
    reason: str,
    message: str,
    generation: int,
    now: str,
) -> Condition:
    """The condition Ready."""
    old = next((each for each in before if each.type == "Ready"), None)
    same = old is not None and old.status == status
    return Condition(
        type="Ready",
        status=status,
        reason=reason,
        message=message,
        last_transition_time=old.last_transition_time if old is not None and same else now,
        observed_generation=generation,
    )


def ready_event(before: Sequence[Condition], after: Condition, *, quiet: frozenset[str]) -> tuple[Event, ...]:
    """One where the reason changed; `quiet` reasons are ordinary steps."""
    old = next((each for each in before if each.type == "Ready"), None)
    if (old is not None and (old.status, old.reason) == (after.status, after.reason)) or after.reason in quiet:
        return ()
    return (Event("Normal" if after.status == "True" else "Warning", after.reason, after.message),)
