"""The whole status of one LLMDeployment from the facts. Pure: the same facts give the same status, byte for byte."""

from __future__ import annotations

from quire_operator import labels
from quire_operator.api import (
    AdapterStatus,
    AutoscalingStatus,
    Condition,
    MetricStatus,
    Phase,
    RevisionStatus,
    RolloutControl,
    RolloutStatus,
    Status,
)
from quire_operator.policy import RevisionView, to_text
from quire_operator.spec import Key
from quire_operator.status.conditions import all_conditions, rollout_message, serving
from quire_operator.status.facts import Facts, Reading


def answers_everywhere(facts: Facts) -> bool:
    """The replicas are there, so a completion through the router may prove it; False while that would be too early."""
    if facts.wanted == 0 or not serving(facts):
        return False
    ready = facts.owner.status.condition("Ready")
    known = ready is not None and ready.status == "True" and ready.observed_generation == facts.owner.generation
    revisions = facts.owner.status.revisions
    return not (known and revisions and revisions[0].name == facts.revision)


def build_status(facts: Facts) -> Status:
    """What to report now."""
    rollout = _rollout(facts)
    conditions = all_conditions(facts, rollout, late=facts.decision.late)
    pods = [pod for pod in facts.pods if pod.track == labels.STABLE and not pod.terminating]
    ready = sum(pod.ready for pod in pods)
    return Status(
        observed_generation=facts.owner.generation,
        phase=_phase(facts, conditions, rollout),
        conditions=conditions,
        replicas=len(pods),
        ready_replicas=ready,
        summary=f"{ready}/{facts.wanted}",
        selector=labels.selector_text(labels.stable_selector(facts.owner.name)),
        url=facts.url,
        current_revision=facts.decision.stable,
        updated_revision=facts.revision,
        revisions=_revisions(facts),
        rollout=rollout,
        control=_control(facts),
        autoscaling=_autoscaling(facts),
        adapters=_adapters(facts),
    )


def invalid_status(key: Key, generation: int, before: Status, message: str, now: str) -> Status:
    """For an LLMDeployment that cannot be understood: what runs is left alone, and the sentence is shown."""
    old = before.condition("Ready")
    same = old is not None and old.status == "False"
    ready = Condition(
        type="Ready",
        status="False",
        reason="InvalidSpec",
        message=message,
        last_transition_time=old.last_transition_time if old is not None and same else now,
        observed_generation=generation,
    )
    others = tuple(condition for condition in before.conditions if condition.type != "Ready")
    return before.model_copy(
        update={
            "observed_generation": generation,
            "phase": "Failed",
            "conditions": (ready, *others),
            "selector": labels.selector_text(labels.stable_selector(key.name)),
        }
    )


def _rollout(facts: Facts) -> RolloutStatus | None:
    decision, rollout = facts.decision, facts.owner.spec.rollout
    progress = decision.progress
    if progress is None:
        return None
    of = 0
    if decision.goal != decision.stable:
        steps = len(rollout.canary.steps) if rollout.canary is not None else 0
        of = {"Canary": steps, "BlueGreen": 1}.get(rollout.strategy, 0)
    return RolloutStatus(
        revision=progress.revision,
        strategy=rollout.strategy,
        step=progress.step + 1 if of else None,
        of=of or None,
        step_at=to_text(progress.step_since) if progress.step_since is not None else None,
        started_at=to_text(progress.started),
        progressed_at=to_text(progress.progressed),
        peak=progress.peak,
        broken_at=to_text(progress.broken_since) if progress.broken_since is not None else None,
        message=rollout_message(facts),
    )


def _revisions(facts: Facts) -> tuple[RevisionStatus, ...]:
    decision = facts.decision

    def one(view: RevisionView) -> RevisionStatus:
        since = decision.unrouted.get(view.name)
        return RevisionStatus(
            name=view.name,
            track="stable" if view.name == decision.stable else "candidate",
            model=facts.models.get(view.name),
            replicas=sum(not pod.terminating for pod in facts.pods if pod.revision == view.name),
            ready=view.ready,
            weight=decision.weights.get(view.name, 0),
            unrouted_at=to_text(since) if since is not None else None,
        )

    shown = [view for view in facts.old if view.desired or view.pods or view.name == decision.stable]
    newest_first = sorted(shown, key=lambda view: (view.created, view.name), reverse=True)
    return (one(facts.target), *(one(view) for view in newest_first))


def _control(facts: Facts) -> RolloutControl | None:
    control = facts.decision.control
    told = RolloutControl(
        paused=control.paused or None,
        aborted=control.aborted,
        why=control.why,
        promoted=control.promoted,
        handled=control.handled,
    )
    return told if told != RolloutControl() else None


def _autoscaling(facts: Facts) -> AutoscalingStatus | None:
    desired = None
    if facts.owner.spec.autoscaling is not None and facts.hpa is not None:
        desired = facts.hpa.get("status", {}).get("desiredReplicas")
    before = facts.owner.status.autoscaling
    if facts.ready == 0:
        metrics: tuple[MetricStatus, ...] = ()
    elif before is not None and not all(reading.tried for reading in facts.readings):
        metrics = before.metrics  # after a restart of the operator, until the first scrape
    else:
        metrics = tuple(_metric(reading) for reading in facts.readings)
    asleep = True if facts.wanted == 0 and facts.owner.idle_after is not None else None
    told = AutoscalingStatus(desired=desired, asleep=asleep, metrics=metrics)
    return told if told != AutoscalingStatus() else None


def _adapters(facts: Facts) -> tuple[AdapterStatus, ...]:
    if facts.adapters is None:
        return facts.owner.status.adapters  # after a restart of the operator, until the pods are asked
    return tuple(AdapterStatus(name=one.name, loaded=one.loaded, of=one.of) for one in facts.adapters)


def _metric(reading: Reading) -> MetricStatus:
    value = None if reading.value is None else f"{reading.value:.2f}".rstrip("0").rstrip(".")
    return MetricStatus(name=reading.name, value=value, state=reading.state)


def _phase(facts: Facts, conditions: tuple[Condition, ...], rollout: RolloutStatus | None) -> Phase:
    status = {condition.type: condition for condition in conditions}
    if facts.wanted == 0:
        return "ScaledToZero"
    if status["Progressing"].reason in ("ApplyFailed", "ProgressDeadlineExceeded"):
        return "Degraded" if facts.ready else "Failed"
    if facts.aborted is not None and facts.ready:
        return "Degraded"
    if facts.ready == 0:
        if facts.problem is not None and facts.problem.fatal:
            return "Failed"
        return "Loading" if any(pod.ip for pod in facts.pods) else "Pending"
    if any(view.desired for view in facts.old):
        return "Progressing"
    if status["Ready"].status != "True":
        return "Loading"
    return "Degraded" if rollout is not None and facts.problem is not None else "Ready"
