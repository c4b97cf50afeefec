"""To zero and back: when the last replica goes, and when the first one comes. Pure; times are seconds of a clock that only runs forward.

    at one ──nobody asked for idleAfter, and everybody says so──▶ at zero ──somebody asks──▶ at one

Only what is known counts: a router or a pod that does not answer for long may have anything to do, so the span begins anew. Between one and
maxReplicas the HorizontalPodAutoscaler is the owner of spec.replicas, and it rests at zero; so each number has one owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quire_operator.api import seconds
from quire_operator.observation import PodView
from quire_operator.policy.plan import Plan
from quire_operator.spec import Deployment

MOST_GAP_S = 15.0
"""Between two times at which everybody answered. What came in between is counted, unless a router that was asked is gone by then: after a
longer one the span begins anew."""
FRESH_S = 5.0
"""What a replica is taken away for was known as lately as this."""


@dataclass(frozen=True)
class Stance:
    """What the last look at an LLMDeployment found that may go to zero. pods: the ready ones, which have to say that they are idle.

    at_rest: no rollout, nothing starts, no person has paused anything.
    """

    replicas: int
    idle_s: float
    at_rest: bool
    pods: frozenset[str] = frozenset()

    @property
    def may_be_quiet(self) -> bool:
        """At zero nothing is quiet: whoever starts a replica by hand has it for the whole span."""
        return self.at_rest and bool(self.pods)


@dataclass(frozen=True)
class Sighting:
    """What routers and pods said at one time.

    came: requests that ever came, by router and by pod; None: one that should have said so did not. busy: requests that wait in
    routers, or wait or run in engines.
    """

    came: Mapping[str, float] | None
    busy: float = 0.0


@dataclass(frozen=True)
class Quiet:
    """Since when nothing came, and what was counted when that was last known."""

    since: float
    known: float
    came: Mapping[str, float] = field(default_factory=dict)


def next_quiet(before: Quiet | None, seen: Sighting, stance: Stance, *, now: float) -> Quiet | None:
    """None: it is not quiet, or nobody knows."""
    if seen.busy > 0 or not stance.may_be_quiet:
        return None
    if before is not None and now - before.known > MOST_GAP_S:
        before = None
    if seen.came is None:
        return before
    fresh = Quiet(now, now, seen.came)
    if before is None:
        return fresh
    # Who is new has counted from 0; who is gone was idle when it was last asked.
    moved = any(count != before.came.get(who, 0.0) for who, count in seen.came.items())
    return fresh if moved else Quiet(before.since, now, seen.came)


def asked(before: Mapping[str, float], came: Mapping[str, float], held: float) -> bool:
    """Somebody waits, or came to one of the routers known before: who went away, or was refused, asks too."""
    return held > 0 or any(count > before[who] for who, count in came.items() if who in before)


def move(stance: Stance, quiet: Quiet | None, *, wanted: bool, now: float) -> int | None:
    """Replicas to set; None: leave them. wanted: somebody asked while it was at zero."""
    if stance.replicas == 0:
        return 1 if wanted else None
    if stance.replicas != 1 or not stance.may_be_quiet or quiet is None:
        return None
    if now - quiet.known > FRESH_S or not all(by_pod(name) in quiet.came for name in stance.pods):
        return None
    return 0 if quiet.known - quiet.since >= stance.idle_s else None


def by_pod(name: str) -> str:
    """Who counted, where it was a pod: routers go by their addresses."""
    return f"pod {name}"


def stance_of(owner: Deployment, plan: Plan, pods: Sequence[PodView], *, settled: bool) -> Stance | None:
    """None: it may not go to zero. pods: leaders. settled: nothing else is being done to its pods."""
    if owner.idle_after is None:
        return None
    live = [pod for pod in pods if not pod.terminating]
    ready = frozenset(pod.name for pod in live if pod.ready)
    moving = plan.decision.progress is not None or plan.decision.control.paused or owner.command is not None
    at_rest = settled and not moving and len(ready) == len(live) == owner.wanted_replicas
    return Stance(owner.wanted_replicas, seconds(owner.idle_after), at_rest, ready)


@dataclass(frozen=True)
class Change:
    """A value for spec.replicas. reason, message: of the Event; None: it is no change of what was there."""

    replicas: int
    reason: str | None = None
    message: str = ""


def change_of(owner: Deployment, target: int | None) -> Change | None:
    """What of spec.replicas is the operator's: its first value under an autoscaler, and the way to zero and back (`target`)."""
    scaling, told = owner.spec.autoscaling, owner.status.autoscaling
    if scaling is not None and owner.spec.replicas is None:
        return Change(owner.initial_replicas)
    if (
        scaling is not None
        and owner.idle_after is None
        and owner.spec.replicas == 0
        and told is not None
        and told.asleep
    ):
        # minReplicas is not 0 any more; the autoscaler rests at zero, so nobody else would start one.
        replicas = owner.initial_replicas
        return Change(replicas, "ScaledFromZero", f"a replica is kept again: 0 to {replicas} replicas")
    if target is None or target == owner.spec.replicas:
        return None
    if target == 0:
        return Change(0, "ScaledToZero", f"nobody asked for {owner.idle_after}: 1 to 0 replicas")
    return Change(target, "ScaledFromZero", f"a request came: 0 to {target} replicas")
