"""The conditions, one function each. `lastTransitionTime` moves only when `status` changes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire_operator import labels
from quire_operator.api import INDEFINITE, Condition, RolloutStatus
from quire_operator.observation import find_condition
from quire_operator.policy import find
from quire_operator.resources.deadlines import duration_text, progress_s
from quire_operator.status.facts import VERIFICATION_FAILURES, Facts
from quire_operator.status.finding import Finding, Truth, previous
from quire_operator.status.model import model_cached

HPA_AT_ZERO = "ScalingDisabled"
"""The reason of a HorizontalPodAutoscaler whose target has no replica."""


def was_ready(facts: Facts) -> bool:
    """Ready was reported for the revision that is wanted now."""
    ready, revisions = previous(facts, "Ready"), facts.owner.status.revisions
    return ready is not None and ready.status == "True" and bool(revisions) and revisions[0].name == facts.revision


def serving(facts: Facts) -> bool:
    """The wanted revision answers alone: all of it at first; once it was Ready, one pod is enough while others come and go."""
    if facts.complete:
        return True
    return was_ready(facts) and facts.target.ready > 0 and all(view.desired == 0 for view in facts.old)


def all_conditions(facts: Facts, rollout: RolloutStatus | None, *, late: bool) -> tuple[Condition, ...]:
    """In the order people read them."""
    makers: Sequence[tuple[str, Callable[[], Finding | None]]] = (
        ("Ready", lambda: _ready(facts)),
        ("Available", lambda: _available(facts)),
        ("Progressing", lambda: _progressing(facts, rollout, late=late)),
        ("RolloutHealthy", lambda: _rollout_healthy(facts, late=late)),
        ("ModelCached", lambda: model_cached(facts)),
        ("MetricsAvailable", lambda: _metrics(facts)),
        ("ScalingActive", lambda: _scaling(facts)),
        ("AdaptersLoaded", lambda: _adapters(facts)),
    )
    found = ((kind, make()) for kind, make in makers)
    return tuple(dated(facts, kind, finding) for kind, finding in found if finding is not None)


def dated(facts: Facts, kind: str, finding: Finding) -> Condition:
    """With the time of the last change of status."""
    before = previous(facts, kind)
    same = before is not None and before.status == finding.status
    return Condition(
        type=kind,
        status=finding.status,
        reason=finding.reason,
        message=finding.message,
        last_transition_time=before.last_transition_time if before is not None and same else facts.now,
        observed_generation=finding.held_generation or facts.owner.generation,
    )


def _why_not(facts: Facts) -> tuple[str, str]:
    """The best explanation for missing replicas."""
    if facts.apply_error is not None:
        return "ApplyFailed", facts.apply_error
    if facts.aborted is not None:
        return "RolloutAborted", _aborted(facts)
    if facts.problem is not None:
        return facts.problem.reason, facts.problem.message
    if facts.failure is not None:
        return "FailedCreate", _not_created(facts.failure)
    if facts.decision.hold in ("Paused", "StepPaused"):
        return facts.decision.hold, rollout_message(facts)
    ready, wanted = facts.target.ready, facts.wanted
    left = sum(view.desired for view in facts.old)
    if left and ready >= wanted:
        return "RollingOut", f"{left} replicas of old revisions are still to be replaced"
    return "Loading", f"{ready} of {wanted} replicas of revision {facts.revision} are ready; the others are starting"


def _not_created(failure: str) -> str:
    return f"pods cannot be created: {failure}"


def _late(facts: Facts) -> str:
    _, why = _why_not(facts)
    return f"no progress for {duration_text(progress_s(facts.owner.spec))}: {why}"


def _ready(facts: Facts) -> Finding:
    if facts.wanted == 0:
        return Finding("False", "ScaledToZero", _at_zero(facts))
    if not serving(facts):
        return Finding("False", *_why_not(facts))
    if facts.verification.state == "Passed":
        return Finding("True", "Answering", "a completion went through the router")
    before = previous(facts, "Ready")
    if before is not None and was_ready(facts):
        # The same pods under a new generation: what was proved stays true, but is not yet proved for this generation.
        return Finding("True", before.reason, before.message, held_generation=before.observed_generation)
    if facts.verification.state == "Failed":
        return Finding("False", facts.verification.reason, facts.verification.message)
    if before is not None and before.reason in VERIFICATION_FAILURES:
        # The same question again, after a restart of the operator: the last answer stands until there is another.
        return Finding("False", before.reason, before.message)
    return Finding("False", "Verifying", "the replicas are ready; waiting for a completion through the router")


def _available(facts: Facts) -> Finding:
    if facts.ready > 0:
        return Finding("True", "ReplicasReady", f"{facts.ready} of {facts.wanted} replicas are ready")
    if facts.wanted == 0:
        return Finding("False", "ScaledToZero", _at_zero(facts))
    return Finding("False", *_why_not(facts))


def _at_zero(facts: Facts) -> str:
    if facts.owner.idle_after is None:
        return "spec.replicas is 0: nothing is asked to serve"
    return f"no replica while nobody asks (idleAfter {facts.owner.idle_after}): the next request through the router starts one"


def _progressing(facts: Facts, rollout: RolloutStatus | None, *, late: bool) -> Finding:
    if facts.apply_error is not None:
        return Finding("False", "ApplyFailed", facts.apply_error)
    if facts.aborted is not None and facts.decision.hold == "Aborted":
        return Finding("False", "RolloutAborted", _aborted(facts))
    if rollout is None:
        return Finding("False", "Complete", f"all {facts.wanted} replicas are of revision {facts.revision}")
    if late:
        return Finding("False", "ProgressDeadlineExceeded", _late(facts))
    if facts.decision.hold in ("Paused", "StepPaused", "Draining"):
        return Finding("True", facts.decision.hold, rollout.message)
    if facts.aborted is not None:
        return Finding("True", "Aborting", rollout.message)
    if facts.decision.goal != facts.decision.stable or any(view.desired for view in facts.old):
        return Finding("True", "RollingOut", rollout.message)
    return Finding("True", "Scaling", rollout.message)


def _rollout_healthy(facts: Facts, *, late: bool) -> Finding:
    """Of a revision on its way beside the one that serves. False asks for a person; what Ready says of pods that serve alone is not said again."""
    if facts.aborted is not None:
        return Finding("False", "RolloutAborted", _aborted(facts))
    goal, stable = facts.decision.goal, facts.decision.stable
    if goal == stable or facts.wanted == 0:
        return Finding("True", "NoRollout", f"no revision is rolled out beside {stable}")
    if facts.apply_error is not None:
        return Finding("False", "ApplyFailed", facts.apply_error)
    if late:
        return Finding("False", "ProgressDeadlineExceeded", _late(facts))
    if facts.problem is not None and facts.problem.revision == goal:
        return Finding("False", facts.problem.reason, facts.problem.message)
    if failure := facts.failures.get(goal):
        return Finding("False", "FailedCreate", _not_created(failure))
    if fallen := find(facts.views, goal).fallen:
        text = f"{fallen} pods of revision {goal} ended by themselves, and have not been ready for long enough since"
        return Finding("False", "PodsRestarted", text)
    return Finding("True", facts.decision.hold or "RollingOut", rollout_message(facts))


def rollout_message(facts: Facts) -> str:
    """One sentence about where the rollout is; without counting down, so that time alone writes no status."""
    decision, rollout = facts.decision, facts.owner.spec.rollout
    goal = find(facts.views, decision.goal)
    left = sum(view.desired for view in facts.views if view.name != decision.goal)
    text = f"revision {decision.goal}: {goal.ready} of {facts.wanted} replicas are ready"
    text += f", {left} of other revisions are left" if left else ""
    if decision.hold == "Paused":
        return f"paused; {text}; {labels.ROLLOUT}=resume goes on"
    if decision.hold == "StepPaused" and decision.progress is not None:
        pause = rollout.blue_green.pause
        if rollout.strategy == "Canary" and rollout.canary is not None:
            pause = rollout.canary.steps[decision.progress.step].pause
        weight = decision.weights.get(decision.goal, 0)
        until = f"until {labels.ROLLOUT}=resume or promote" if pause == INDEFINITE else f"for {pause}"
        return f"{weight} % of the requests go to revision {decision.goal}, {until}; {text}"
    if decision.hold == "Draining":
        return f"what lost its requests finishes what it has; {text}"
    return text


def _aborted(facts: Facts) -> str:
    return (
        f"revision {facts.revision} is not rolled out: {facts.aborted}; revision {facts.decision.goal} serves. "
        f"{labels.ROLLOUT}=retry tries again, as does another edit"
    )


def _metrics(facts: Facts) -> Finding:
    if facts.ready == 0:
        return Finding("Unknown", "NoPods", "no pod is ready, so there is nothing to measure")
    for reading in facts.readings:
        if not reading.tried:
            before = previous(facts, "MetricsAvailable")
            if before is not None and before.reason != "NoPods":
                return Finding(before.status, before.reason, before.message)
            return Finding("Unknown", "NotYetMeasured", "the pods have not been asked for their metrics yet")
        if reading.state == "Missing":
            return Finding("False", "MetricMissing", f"{reading.metric} is exported by none of the ready pods")
        if reading.state == "Stale":
            return Finding("False", "MetricStale", f"{reading.metric} has no recent value from any ready pod")
    silent = sorted({name for reading in facts.readings for name in reading.silent})
    if silent:
        return Finding(
            "False", "PodsSilent", f"no recent metrics from {', '.join(silent)}; they count as unknown, not as idle"
        )
    return Finding("True", "Measured", "every ready pod answers with its metrics")


def _scaling(facts: Facts) -> Finding | None:
    if facts.owner.spec.autoscaling is None:
        return None
    theirs = find_condition(facts.hpa.get("status", {}), "ScalingActive") if facts.hpa is not None else None
    if theirs is not None and theirs.get("reason") == HPA_AT_ZERO:
        if facts.wanted == 0:
            return Finding("Unknown", "ScaledToZero", "the HorizontalPodAutoscaler rests until there is a replica")
        theirs = None  # its last word is of the time before
    if theirs is None:
        return Finding("Unknown", "NotYetReported", "the HorizontalPodAutoscaler has not reported yet")
    status: Truth = "True" if theirs["status"] == "True" else "False" if theirs["status"] == "False" else "Unknown"
    return Finding(status, theirs.get("reason", "Unknown"), theirs.get("message", ""))


def _adapters(facts: Facts) -> Finding | None:
    """Only where somebody asks for adapters."""
    if facts.adapters is None:
        before = previous(facts, "AdaptersLoaded")
        if before is not None:
            return Finding(before.status, before.reason, before.message)
        text = "the pods have not been asked for their adapters yet"
        return Finding("Unknown", "NotYetAsked", text) if facts.owner.spec.adapters else None
    if not facts.adapters:
        return None
    bad = next((reading for reading in facts.adapters if not reading.well), None)
    if bad is not None:
        return Finding("False", bad.reason, f"{bad.name}: {bad.message}")
    return Finding("True", "Loaded", f"every ready pod has {', '.join(reading.name for reading in facts.adapters)}")
