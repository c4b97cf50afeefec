"""`kubectl llmd rollout`: which commands make sense, and what became of them."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import body
from quire_operator import labels
from quire_operator.plugin import orders
from quire_operator.policy.commands import COMMANDS
from quire_operator.spec import Deployment, parse

CANARY = {"strategy": "Canary", "canary": {"steps": [{"weight": 40, "pause": "indefinite"}]}}
TIME = "2026-01-01T00:00:00Z"


def owner(
    *,
    control: dict[str, Any] | None = None,
    rolling: bool = True,
    reason: str = "RollingOut",
    command: str | None = None,
    generation: int = 1,
    strategy: dict[str, Any] | None = None,
    **spec: Any,
) -> Deployment:
    """`new` is wanted; while rolling `old` is the stable revision."""
    progressing = {
        "type": "Progressing",
        "status": "True",
        "reason": reason,
        "message": "one of two",
        "lastTransitionTime": TIME,
        "observedGeneration": 1,
    }
    rollout = {"revision": "new", "startedAt": TIME, "progressedAt": TIME, "message": "revision new: 1 of 2"}
    if reason == "StepPaused":
        rollout["stepAt"] = TIME
    status = {
        "observedGeneration": 1,
        "currentRevision": "old" if rolling else "new",
        "updatedRevision": "new",
        "conditions": [progressing],
        **({"rollout": rollout} if rolling else {}),
        **({"control": control} if control else {}),
    }
    found = body({"rollout": strategy or CANARY, **spec}, generation=generation, status=status)
    if command is not None:
        found["metadata"]["annotations"] = {labels.ROLLOUT: command}
    return parse(found)


@pytest.mark.parametrize(
    ("command", "state", "why"),
    [
        ("pause", {"control": {"paused": True}}, "paused already"),
        ("resume", {}, "nothing is paused, and no step waits"),
        ("promote", {"rolling": False}, "no candidate to promote"),
        ("promote", {"control": {"aborted": "new"}}, "no candidate to promote"),
        ("promote", {"strategy": {"strategy": "RollingUpdate"}}, "RollingUpdate has no steps"),
        ("abort", {"rolling": False}, "no rollout to abort"),
        ("abort", {"control": {"aborted": "new"}}, "aborted already; retry"),
        ("retry", {"rolling": False}, "revision new is the stable one"),
        ("abort", {"command": "pause"}, "the command pause before it"),
        ("jump", {}, "must be one of pause"),
    ],
)
def test_a_command_without_effect_is_refused_with_the_reason(command: str, state: dict[str, Any], why: str) -> None:
    found = orders.objection(owner(**state), command)
    assert found is not None and why in found


@pytest.mark.parametrize(
    ("command", "state"),
    [
        ("pause", {}),
        ("pause", {"rolling": False}),
        ("resume", {"control": {"paused": True}}),
        ("resume", {"reason": "StepPaused"}),
        ("promote", {"reason": "StepPaused"}),
        ("promote", {"control": {"paused": True}, "strategy": {"strategy": "RollingUpdate"}}),
        ("abort", {}),
        ("retry", {"control": {"aborted": "new"}}),
        ("retry", {}),
        ("abort", {"command": "abort"}),
    ],
)
def test_a_command_with_an_effect_is_sent(command: str, state: dict[str, Any]) -> None:
    assert orders.objection(owner(**state), command) is None


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_held_against_a_command_while_the_last_edit_is_unseen(command: str) -> None:
    assert orders.objection(owner(rolling=False, generation=2), command) is None


@pytest.mark.parametrize(
    ("command", "done", "undone"),
    [
        ("pause", {"control": {"paused": True}}, {}),
        ("resume", {}, {"control": {"paused": True}}),
        ("promote", {"control": {"promoted": "new"}}, {}),
        ("promote", {"rolling": False}, {}),
        ("abort", {"control": {"aborted": "new"}}, {}),
        ("retry", {}, {"control": {"aborted": "new"}}),
    ],
)
def test_an_effect_is_seen_in_the_status(command: str, done: dict[str, Any], undone: dict[str, Any]) -> None:
    assert orders.failed(owner(**done), command) is None
    why = orders.failed(owner(**undone), command)
    assert why is not None and "kubectl describe llmd smol" in why


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_operator_has_its_sentence(command: str) -> None:
    said = orders.outcome(owner(), command)
    assert said.startswith("smol ") and said.endswith(": revision new: 1 of 2")
    assert "until resume" in orders.outcome(owner(rolling=False), "pause")


def test_replicas_of_an_autoscaler_are_not_the_users() -> None:
    assert orders.not_scalable(owner(replicas=2), 3) is None
    scaled = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targets": {"queueSize": "4"}}}
    why = orders.not_scalable(owner(**scaled), 3)
    assert why is not None and "1 to 4" in why and "maxReplicas" in why
