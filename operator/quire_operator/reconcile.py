"""One look at one LLMDeployment: read everything, decide with pure functions, apply, report.

Level-triggered: nothing is remembered from event to event but what can be read again, so it does not matter which
event asked, how many were lost, or that the operator restarted. Forbidden here: kopf, and decisions (see policy, status).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from quire_operator import labels, telemetry
from quire_operator.api import Status
from quire_operator.cluster import Cluster, Supplies, Units, kinds, leaders_of
from quire_operator.errors import ApplyError, SpecError
from quire_operator.observation import (
    Body,
    Observation,
    WorkloadKind,
    kind_of,
    marks_of,
    pod_views,
    workload_views,
)
from quire_operator.policy import (
    Plan,
    change_of,
    intent_of,
    make_plan,
    revision_of,
    stance_of,
    standing_revision,
    to_seconds,
)
from quire_operator.probe import Demand, Samples, Verifier
from quire_operator.resources import (
    PodDefaults,
    build_hpa,
    build_pod_template,
    build_service,
    build_supplies,
    build_workload,
    supply_names,
    workload_name,
)
from quire_operator.settings import Settings
from quire_operator.spec import Deployment, Key, parse, parse_status
from quire_operator.status import (
    AdapterReading,
    Event,
    Facts,
    Verification,
    answers_everywhere,
    build_status,
    events_between,
    invalid_status,
    problem_of,
)
from quire_operator.workqueue import Outcome

log = logging.getLogger(__name__)


class Reconciler:
    """Call it with a key; it is the work of the queue. `adapters` tells what its pods have; None: not known yet. `gone` is told who is deleted."""

    def __init__(
        self,
        cluster: Cluster,
        settings: Settings,
        samples: Samples,
        verifier: Verifier,
        *,
        demand: Demand,
        adapters: Callable[[Deployment], tuple[AdapterReading, ...] | None] = lambda owner: None,
        gone: Callable[[Key], None] = lambda key: None,
    ) -> None:
        self._cluster = cluster
        self._samples = samples
        self._verifier = verifier
        self._demand = demand
        self._adapters = adapters
        self._gone = gone
        self._url = f"{settings.router_url}/v1"
        self._defaults = PodDefaults.from_settings(settings)
        self._supplies = Supplies(cluster)
        self._units = Units(cluster)
        self._unit_kind: WorkloadKind = "LeaderWorkerSet" if settings.leader_worker_set else "StatefulSet"

    async def __call__(self, key: Key) -> Outcome:
        seen = await self._cluster.observe(key)
        if seen is None or "deletionTimestamp" in seen.body["metadata"]:
            self._forget(key)
            return Outcome()
        try:
            owner = parse(seen.body)
        except SpecError as error:
            await self._report_invalid(seen.body, key, str(error))
            return Outcome()
        return await self._converge(owner, seen)

    async def follow(self, key: Key) -> Outcome:
        """Instead of a look where another process leads: the pods are known and measured, nothing is written or kept."""
        body = await self._cluster.get(kinds.LLMDeployment, key.name, key.namespace)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)
            return Outcome()
        found = await self._cluster.listed(kinds.Pod, key.namespace, {labels.DEPLOYMENT: key.name})
        self._samples.set_pods(key, leaders_of(pod_views(found), ()))
        self._verifier.forget(key)
        self._demand.forget(key)
        self._supplies.forget(key)
        telemetry.forget(key.namespace, key.name)
        return Outcome()

    async def _converge(self, owner: Deployment, seen: Observation) -> Outcome:
        every = pod_views(seen.pods)
        pods = leaders_of(every, seen.sets)
        self._samples.set_pods(owner.key, pods)
        now, at = _now(), time.monotonic()
        template = build_pod_template(owner, self._defaults)
        workloads = workload_views(seen.workloads)
        revision = standing_revision(revision_of(template), intent_of(owner), workloads)
        in_flight = self._samples.in_flight(owner.key, at=at)
        plan = make_plan(owner, revision, workloads, pods, now=now, in_flight=in_flight)
        events = _orders(owner, plan)
        waits = [plan.decision.again_s]

        async def tend() -> None:
            waits.append(await self._units.tend(owner, seen, every, plan.sizes, events, now=to_seconds(now)))

        # What is refused of the one must not keep the other from what serves.
        refusal = await _refusal(self._carry_out(owner, seen, template, plan, events))
        refusal = await _refusal(tend()) or refusal
        refused = str(refusal) if refusal is not None else None
        if refused is not None:
            telemetry.RECONCILE_ERRORS.labels(reason="ApplyError").inc()
        facts = Facts(
            owner=owner,
            now=now,
            revision=revision,
            decision=plan.decision,
            views=plan.views,
            # What was told before goes first: an annotation may have been edited since.
            models={view.revision: view.model for view in workloads if view.model}
            | {told.name: told.model for told in owner.status.revisions if told.model}
            | {revision: owner.spec.model.source},
            pods=pods,
            problem=problem_of(every, revision, before=owner.status.condition("Ready")),
            failures={view.revision: view.failure for view in workloads if view.failure},
            apply_error=refused,
            verification=Verification("NotAsked"),
            readings=self._samples.readings(owner.key, at=at),
            hpa=seen.own_hpa,
            url=self._url,
            adapters=self._adapters(owner),
            every=every,
            model_cache=seen.model_cache,
        )
        facts = self._verify(facts)
        status = build_status(facts)
        await self._report(seen.body, owner.status, status, events)
        if owner.command is not None and plan.decision.consumed:
            await self._cluster.clear_command(seen.body, owner.command)  # its effect is in the status by now
        self._count(owner, status)
        again_s = min((each for each in waits if each is not None), default=None)
        return Outcome(again_s=again_s, failed=refused is not None)

    async def _carry_out(
        self, owner: Deployment, seen: Observation, template: Body, plan: Plan, events: list[Event]
    ) -> None:
        await self._scale(owner, seen, plan, events)
        await self._cluster.apply(build_service(owner), seen.service)
        refused = await _refusal(self._mend(owner, seen))
        # A typo in the template must not freeze the revision that serves.
        refused = await _refusal(self._supply(owner, seen, plan)) or refused
        refused = await _refusal(self._apply_workload(owner, seen, template, plan, events)) or refused
        least = 0 if refused is None else owner.wanted_replicas
        for revision, before, planned in plan.resize:
            after = max(planned, min(before, least))  # what was refused takes the place of nothing
            if after == before:
                continue
            name = workload_name(owner.name, revision)
            await self._cluster.resize(owner.key, name, after, _kind(seen, name))
            events.append(Event("Normal", "Scaled", f"revision {revision}: {before} to {after} replicas", "Scale"))
        for revision in plan.delete:
            name = workload_name(owner.name, revision)
            await self._cluster.delete(kinds.OF[_kind(seen, name)], owner.key, name)
            events.append(Event("Normal", "RevisionRemoved", f"revision {revision} has no pods left", "Roll"))
        await self._apply_hpa(owner, seen)
        if refused is not None:
            raise refused

    async def _scale(self, owner: Deployment, seen: Observation, plan: Plan, events: list[Event]) -> None:
        """What of spec.replicas is the operator's: its first value, and the way to zero and back. The next look acts on it."""
        asked = self._adapters(owner) is not None or not owner.spec.adapters
        pods = leaders_of(pod_views(seen.pods), seen.sets)
        change = change_of(owner, self._demand.look(owner.key, stance_of(owner, plan, pods, settled=asked)))
        if change is None:
            return
        version = seen.body["metadata"]["resourceVersion"]
        if await self._cluster.set_scale(owner.key, change.replicas, version=version) and change.reason is not None:
            events.append(Event("Normal", change.reason, change.message, "Scale"))

    async def _mend(self, owner: Deployment, seen: Observation) -> None:
        """Labels by which workloads are found; old revisions are not applied again."""
        for workload in (*seen.workloads, *seen.workers):
            marks = {**marks_of(workload), labels.DEPLOYMENT: owner.name}
            live = workload["metadata"].get("labels") or {}
            if any(live.get(key) != value for key, value in marks.items()):
                name = workload["metadata"]["name"]
                await self._cluster.mark(kinds.OF[kind_of(workload)], owner.key, name, marks)
                log.info("%s: labels of %s %s are put back", owner.key, kind_of(workload), name)

    async def _supply(self, owner: Deployment, seen: Observation, plan: Plan) -> None:
        """What another revision may still need stays until it has no pods and is not the way back any more."""
        arrived = plan.decision.progress is None and plan.decision.stable == plan.revision
        alone = all(view.desired == 0 for view in workload_views(seen.workloads) if view.revision != plan.revision)
        await self._supplies.apply(
            owner, build_supplies(owner, self._defaults), supply_names(owner), prune=arrived and alone
        )

    async def _apply_workload(
        self, owner: Deployment, seen: Observation, template: Body, plan: Plan, events: list[Event]
    ) -> None:
        name = workload_name(owner.name, plan.revision)
        live = next((item for item in seen.workloads if item["metadata"]["name"] == name), None)
        if plan.revision != revision_of(template):
            # Made by another release from the same spec: its pods stand as they are.
            assert live is not None, "only a workload that is there can stand"
            if (before := live["spec"]["replicas"]) != plan.size:
                await self._cluster.resize(owner.key, name, plan.size, kind_of(live))
                text = f"revision {plan.revision}: {before} to {plan.size} replicas"
                events.append(Event("Normal", "Scaled", text, "Scale"))
            return
        fresh: WorkloadKind = "Deployment" if owner.unit_size == 1 else self._unit_kind
        kind = fresh if live is None else kind_of(live)
        wanted = build_workload(owner, plan.revision, dict(template), plan.size, intent=intent_of(owner), kind=kind)
        if not await self._cluster.apply(wanted, live):
            return
        if live is None:
            text = f"revision {plan.revision} begins with {plan.size} of {owner.wanted_replicas} replicas"
            events.append(Event("Normal", "RevisionCreated", text, "Roll"))
        elif (before := live["spec"]["replicas"]) != plan.size:
            text = f"revision {plan.revision}: {before} to {plan.size} replicas"
            events.append(Event("Normal", "Scaled", text, "Scale"))

    async def _apply_hpa(self, owner: Deployment, seen: Observation) -> None:
        wanted = build_hpa(owner)
        if wanted is not None:
            await self._cluster.apply(wanted, seen.hpa)
        elif seen.own_hpa is not None:
            await self._cluster.delete(kinds.HorizontalPodAutoscaler, owner.key, owner.name)

    def _verify(self, facts: Facts) -> Facts:
        owner = facts.owner
        if not answers_everywhere(facts):
            self._verifier.forget(owner.key)
            return facts
        answer = self._verifier.ask(
            owner.key,
            uid=owner.uid,
            generation=owner.generation,
            revision=facts.revision,
            model=str(owner.key),
        )
        return facts.with_verification(answer)

    async def _report_invalid(self, body: Body, key: Key, message: str) -> None:
        log.warning("%s: %s", key, message)
        before = parse_status(body)
        status = invalid_status(key, body["metadata"]["generation"], before, message, _now())
        await self._report(body, before, status, [])

    async def _report(self, body: Body, before: Status, after: Status, events: Sequence[Event]) -> None:
        """Events follow the status that proves them: an operator that dies in between repeats none."""
        written = await self._cluster.write_status(
            body, after.model_dump(by_alias=True, exclude_none=True, mode="json")
        )
        for event in (*events, *(events_between(before, after) if written else ())):
            await self._cluster.post_event(body, event)

    def _count(self, owner: Deployment, status: Status) -> None:
        for state, value in (
            ("desired", owner.wanted_replicas),
            ("current", status.replicas or 0),
            ("ready", status.ready_replicas or 0),
        ):
            telemetry.REPLICAS.labels(owner.namespace, owner.name, state).set(value)

    def _forget(self, key: Key) -> None:
        self._samples.forget(key)
        self._verifier.forget(key)
        self._demand.forget(key)
        self._cluster.forget(key)
        self._supplies.forget(key)
        self._gone(key)
        telemetry.forget(key.namespace, key.name)


async def _refusal(step: Awaitable[None]) -> ApplyError | None:
    try:
        await step
    except ApplyError as error:
        return error
    return None


def _kind(seen: Observation, name: str) -> WorkloadKind:
    return next(kind_of(each) for each in seen.workloads if each["metadata"]["name"] == name)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _orders(owner: Deployment, plan: Plan) -> list[Event]:
    """What became of the user's command, told once."""
    before = owner.status.control
    if owner.command is None or (before is not None and before.handled == owner.command):
        return []
    if plan.decision.refused is not None:
        text = f"{labels.ROLLOUT}={owner.command} has no effect: {plan.decision.refused}"
        return [Event("Warning", "CommandRefused", text, "Roll")]
    return [Event("Normal", "CommandAccepted", f"{labels.ROLLOUT}={owner.command}", "Roll")]
