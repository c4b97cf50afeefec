"""One unit of pods, a leader and its workers: they start, fail and begin anew together. Pure; times are seconds since 1970.

Which pods are one unit is written down (`UnitState.members`) once all of them are there. When one of them is another one, is gone, or has
restarted its engine, all are deleted, and what takes their place is the next unit. A unit that keeps failing begins anew more and more seldom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from quire_operator.backoff import backoff_s
from quire_operator.observation import PodView

FIRST_S, MOST_S = 10.0, 300.0
"""Between two new beginnings: 10 s after the first, then 20 s, … 5 min, as with containers."""
WELL_S = 600.0
"""A unit that has been ready for so long has none of its failures left, as with containers."""


@dataclass(frozen=True)
class UnitState:
    """members: uids of the pods that are one unit; empty while they come. breaking: all of these have to go first.

    restarts: new beginnings so far, the last one at `at`.
    """

    members: tuple[str, ...] = ()
    breaking: bool = False
    restarts: int = 0
    at: float = 0.0


@dataclass(frozen=True)
class Unit:
    """As seen. `state` None: its workers' StatefulSet is not there. wanted: its index is below the number of units."""

    index: int
    size: int
    leader: PodView | None
    workers: Sequence[PodView]
    state: UnitState | None
    wanted: bool = True


@dataclass(frozen=True)
class UnitPlan:
    """create, drop: the workers' StatefulSet. state: written before pods are deleted. delete: pods. ready: what the leader's gate
    should say; None: leave it. again_s: when to look without being asked."""

    create: bool = False
    drop: bool = False
    state: UnitState | None = None
    delete: tuple[str, ...] = ()
    ready: bool | None = None
    again_s: float | None = None


def plan_unit(unit: Unit, now: float) -> UnitPlan:
    """Call it after every change and after `again_s`."""
    pods = [*((unit.leader,) if unit.leader is not None else ()), *unit.workers]
    live = [pod for pod in pods if not pod.terminating]
    if not unit.wanted:
        # The leader finishes what it has, and needs its workers for that.
        return UnitPlan(drop=unit.leader is None and unit.state is not None)
    if unit.state is None:
        known = unit.leader is not None and unit.leader.gate
        # A leader that was part of a unit cannot be part of the next one.
        state = UnitState(tuple(pod.uid for pod in live), breaking=True, at=now) if known else UnitState(at=now)
        return UnitPlan(create=True, state=state, ready=False)
    state = unit.state
    if state.breaking:
        old = [pod for pod in pods if pod.uid in state.members]
        after = None if old else replace(state, members=(), breaking=False)
        return UnitPlan(state=after, delete=tuple(pod.name for pod in old if not pod.terminating), ready=False)
    uids = {pod.uid for pod in live}
    if any(pod.engine_restarts for pod in live) or (state.members and set(state.members) != uids):
        left = backoff_s(state.restarts, FIRST_S, MOST_S) - _since_s(state, now)
        if state.restarts and left > 0:
            return UnitPlan(ready=False, again_s=left)
        members = tuple(sorted(uids | set(state.members)))
        broken = UnitState(members, breaking=True, restarts=state.restarts + 1, at=now)
        return UnitPlan(state=broken, delete=tuple(pod.name for pod in live), ready=False)
    formed = bool(state.members)
    if not formed and len(live) == len(pods) == unit.size:
        state, formed = replace(state, members=tuple(sorted(uids))), True
    ready = formed and whole(unit)
    if ready and state.restarts and _since_s(state, now) >= WELL_S:
        state = replace(state, restarts=0)
    wait = WELL_S - _since_s(state, now) if ready and state.restarts else None
    return UnitPlan(state=state if state != unit.state else None, ready=ready, again_s=wait)


def whole(unit: Unit) -> bool:
    """All pods are there and ready, the leader as far as it can be without the others."""
    workers = [pod for pod in unit.workers if pod.ready]
    return unit.leader is not None and unit.leader.containers_ready and len(workers) == unit.size - 1


def _since_s(state: UnitState, now: float) -> float:
    """Absolute: an operator whose clock was ahead must not hold a unit up for as long as it was."""
    return abs(now - state.at)
