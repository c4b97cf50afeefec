"""Keeps units of pods whole (`policy.units`): their workers' StatefulSets, their new beginnings, and the gate of their leaders."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from pydantic import TypeAdapter

from quire_operator import labels
from quire_operator.cluster import kinds
from quire_operator.cluster.client import Cluster
from quire_operator.observation import (
    CRASHES,
    Body,
    Observation,
    PodView,
    kind_of,
    marks_of,
    revision_of_workload,
    role_of,
    unit_size_of,
)
from quire_operator.policy.units import Unit, UnitPlan, UnitState, plan_unit, whole
from quire_operator.resources.units import build_workers, unit_workers_name
from quire_operator.spec import Deployment
from quire_operator.status import Event

log = logging.getLogger(__name__)

_STATE = TypeAdapter(UnitState)
_Place = tuple[str, int]
"""Revision and index of a unit."""


class Units:
    """Of one LLMDeployment at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def tend(
        self,
        owner: Deployment,
        seen: Observation,
        pods: Sequence[PodView],
        sizes: Mapping[str, int],
        events: list[Event],
        *,
        now: float,
    ) -> float | None:
        """Bring every unit nearer to what it should be; seconds until it is worth another look. sizes: units by revision."""
        sets: dict[_Place, Body] = {}
        for workers in seen.workers:
            revision, index = _place(workers)
            if workers["metadata"]["name"] == unit_workers_name(owner.name, revision, index):
                sets[revision, index] = workers
        waits: list[float] = []
        known: set[_Place] = set()
        for workload in seen.workloads:
            kind, revision, size = kind_of(workload), revision_of_workload(workload), unit_size_of(workload)
            if kind == "Deployment":
                continue
            indices = {*range(sizes.get(revision, 0)), *(index for name, index in sets if name == revision)}
            for index in sorted(indices):
                known.add((revision, index))
                unit = _unit(revision, index, size, pods, sets.get((revision, index)), sizes.get(revision, 0))
                if kind == "LeaderWorkerSet":
                    await self._gate(owner, unit, UnitPlan(ready=whole(unit)))
                    continue
                if unit.wanted and unit.state is not None:
                    await self._cluster.apply(build_workers(owner, workload, index), sets[revision, index])
                plan = plan_unit(unit, now)
                await self._carry_out(owner, workload, unit, plan, events)
                waits += [plan.again_s] if plan.again_s is not None else []
        kept = {sets[place]["metadata"]["name"] for place in known & sets.keys()}
        # Of a name that is too long for pods, or of leaders whose StatefulSet is gone.
        for name in sorted({each["metadata"]["name"] for each in seen.workers} - kept):
            await self._cluster.delete(kinds.StatefulSet, owner.key, name)
        return min(waits, default=None)

    async def _carry_out(
        self, owner: Deployment, leaders: Body, unit: Unit, plan: UnitPlan, events: list[Event]
    ) -> None:
        """What is remembered is written before what it is needed for is done."""
        revision = revision_of_workload(leaders)
        name = unit_workers_name(owner.name, revision, unit.index)
        await self._gate(owner, unit, plan)
        if plan.create:
            await self._cluster.apply(build_workers(owner, leaders, unit.index), None)
        if plan.state is not None:
            notes = {labels.UNIT_STATE: json.dumps(asdict(plan.state), separators=(",", ":"))}
            await self._cluster.annotate(kinds.StatefulSet, owner.key, name, notes)
            if plan.state.breaking and not plan.create:
                text = f"unit {unit.index} of revision {revision} begins anew: one of its {unit.size} pods ended or was replaced"
                events.append(Event("Warning", "UnitRestarted", text, "Restart"))
        for pod in plan.delete:
            await self._cluster.delete(kinds.Pod, owner.key, pod)
        if plan.drop:
            await self._cluster.delete(kinds.StatefulSet, owner.key, name)

    async def _gate(self, owner: Deployment, unit: Unit, plan: UnitPlan) -> None:
        leader = unit.leader
        if leader is not None and not leader.terminating and plan.ready is not None and leader.gate != plan.ready:
            await self._cluster.set_unit_ready(owner.key, leader.name, ready=plan.ready)


def leaders_of(pods: Iterable[PodView], sets: Iterable[Body]) -> tuple[PodView, ...]:
    """The pods that stand for a replica each, with the new beginnings of their units among their restarts."""
    states = {_place(each): state_of(each) for each in sets if role_of(each) == labels.WORKER}

    def one(pod: PodView) -> PodView:
        state = states.get((pod.revision, pod.unit)) if pod.unit is not None else None
        if state is None or not state.restarts:
            return pod
        restarts = pod.restarts + state.restarts
        crashing = pod.crashing or (not pod.ready and not pod.terminating and restarts >= CRASHES)
        return replace(pod, restarts=restarts, crashing=crashing)

    return tuple(one(pod) for pod in pods if pod.role == labels.LEADER)


def state_of(workers: Body) -> UnitState:
    """As written down with a unit's workers; what cannot be read is forgotten."""
    text = (workers["metadata"].get("annotations") or {}).get(labels.UNIT_STATE)
    try:
        state = _STATE.validate_json(text) if text else UnitState()
        if not math.isfinite(state.at):
            raise ValueError("not a time")
        return state
    except ValueError:
        log.warning("%s of StatefulSet %s cannot be read: %s", labels.UNIT_STATE, workers["metadata"]["name"], text)
        return UnitState()


def _place(workers: Body) -> _Place:
    marks = marks_of(workers)
    told = marks.get(labels.UNIT, "")
    return marks.get(labels.REVISION, ""), int(told) if told.isdecimal() else -1


def _unit(revision: str, index: int, size: int, pods: Sequence[PodView], workers: Body | None, wanted: int) -> Unit:
    mine = [pod for pod in pods if pod.revision == revision and pod.unit == index]
    return Unit(
        index=index,
        size=size,
        leader=next((pod for pod in mine if pod.role == labels.LEADER), None),
        workers=tuple(pod for pod in mine if pod.role == labels.WORKER),
        state=state_of(workers) if workers is not None else None,
        wanted=index < wanted,
    )
