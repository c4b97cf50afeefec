"""Events: one when a reason appears, none while it stays, none for what is ordinary."""

from __future__ import annotations

import pytest

from quire_operator.api import Condition, RevisionStatus, Status
from quire_operator.status import events_between


def status(*conditions: tuple[str, str, str], message: str = "why") -> Status:
    return Status.model_validate(
        {
            "conditions": [
                Condition.model_validate(
                    {
                        "type": kind,
                        "status": truth,
                        "reason": reason,
                        "message": message,
                        "last_transition_time": "2026-01-01T00:00:00Z",
                        "observed_generation": 1,
                    }
                )
                for kind, truth, reason in conditions
            ]
        }
    )


CRASHING = ("Ready", "False", "CrashLoopBackOff")
SERVING = ("Available", "True", "ReplicasReady")


def test_a_reason_that_stays_is_told_once_even_if_its_words_change() -> None:
    (event,) = events_between(status(("Ready", "False", "Loading")), status(CRASHING))
    assert (event.kind, event.reason, event.message) == ("Warning", "CrashLoopBackOff", "why")
    assert events_between(status(CRASHING), status(CRASHING, message="other pod")) == ()


def test_ready_is_told_when_it_comes() -> None:
    (event,) = events_between(status(CRASHING), status(("Ready", "True", "Answering")))
    assert (event.kind, event.reason) == ("Normal", "Ready")
    assert events_between(status(("Ready", "True", "Answering")), status(("Ready", "True", "Answering"))) == ()


@pytest.mark.parametrize("reason", ["Loading", "Verifying", "RollingOut", "ScaledToZero"])
def test_the_ordinary_way_is_no_event(reason: str) -> None:
    assert events_between(Status.model_validate({}), status(("Ready", "False", reason))) == ()


def test_available_says_nothing_that_ready_does_not() -> None:
    crashing = ("Available", "False", "CrashLoopBackOff")
    assert len(events_between(Status.model_validate({}), status(CRASHING, crashing))) == 1


def test_missing_metrics_are_news_only_while_pods_serve() -> None:
    missing = ("MetricsAvailable", "False", "MetricMissing")
    assert events_between(Status.model_validate({}), status(missing)) == ()
    (event,) = events_between(status(SERVING), status(SERVING, missing))
    assert event.reason == "MetricMissing"
    (again,) = events_between(status(SERVING, missing), status(SERVING, ("MetricsAvailable", "True", "Measured")))
    assert (again.kind, again.reason) == ("Normal", "MetricsAvailableAgain")


def test_the_end_of_a_rollout_is_told_the_end_of_scaling_is_not() -> None:
    done = ("Progressing", "False", "Complete")
    (event,) = events_between(status(("Progressing", "True", "RollingOut")), status(done))
    assert event.reason == "RolloutComplete"
    assert events_between(status(("Progressing", "True", "Scaling")), status(done)) == ()


def test_what_happened_once_has_one_occasion_until_the_condition_was_true_again() -> None:
    """Two pods that fail in turn: the reason alternates, and neither is news."""
    unschedulable = ("Ready", "False", "Unschedulable")
    (first,) = events_between(Status(), status(CRASHING))
    (other,) = events_between(status(CRASHING), status(unschedulable))
    (again,) = events_between(status(unschedulable), status(CRASHING))
    assert first.occasion == again.occasion != other.occasion
    later = status(CRASHING)
    later = later.model_copy(
        update={
            "conditions": (later.conditions[0].model_copy(update={"last_transition_time": "2026-01-01T01:00:00Z"}),)
        }
    )
    assert events_between(status(("Ready", "True", "Answering")), later)[0].occasion != first.occasion
    another = status(CRASHING).model_copy(update={"updated_revision": "other"})
    assert events_between(status(unschedulable), another)[0].occasion != first.occasion


def test_what_fails_in_an_old_revision_is_no_news_of_the_new_one() -> None:
    """Somebody has mended it: while the new pod is made, the old one is told of again."""
    old, new = ({"name": name, "track": "stable", "replicas": 1, "ready": 0} for name in ("1a2b", "3c4d"))

    def crashing(revision: str, *revisions: dict[str, object]) -> Status:
        found = status(CRASHING, message=f"pod smol-{revision}-5f6c9-abcde, container engine ended with exit code 1")
        more = {"revisions": tuple(map(RevisionStatus.model_validate, revisions)), "updated_revision": "3c4d"}
        return found.model_copy(update=more)

    loading = status(("Ready", "False", "Loading"))
    (first,) = events_between(loading, crashing("1a2b", old).model_copy(update={"updated_revision": "1a2b"}))
    (again,) = events_between(loading, crashing("1a2b", old, new))
    (other,) = events_between(loading, crashing("3c4d", old, new))
    assert first.occasion == again.occasion != other.occasion


def test_what_other_conditions_say_is_no_event() -> None:
    healthy, trouble = ("RolloutHealthy", "True", "NoRollout"), ("RolloutHealthy", "False", "CrashLoopBackOff")
    cached, failed = ("ModelCached", "True", "Fetched"), ("ModelCached", "False", "FetchFailed")
    assert events_between(status(healthy, cached), status(trouble, failed)) == ()
    aborted = status(("Ready", "False", "RolloutAborted"), ("Progressing", "False", "RolloutAborted"))
    assert [event.reason for event in events_between(Status(), aborted)] == ["RolloutAborted"], "not of each condition"
