"""Manual control: what the value of the annotation quire.dev/rollout changes. Pure.

    pause     nothing moves on until resume; what is running keeps its requests, and scales with the demand
    resume    lifts pause; where there is none, ends the wait of the present step
    promote   leaves out the remaining steps
    abort     back to the stable revision; stays there until retry or another edit
    retry     once more from the first step

A value is carried out once: it is written down as handled together with its effect, then the annotation is removed. An
operator that dies in between finds it handled, and only removes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire_operator.policy.views import Control, Situation

COMMANDS = ("pause", "resume", "promote", "abort", "retry")


@dataclass(frozen=True)
class Orders:
    """released: the wait of the step is over. restart: the rollout begins anew. moved: the deadline counts from now.

    consumed: the annotation has done its work. refused: why the value had no effect.
    """

    control: Control
    released: bool = False
    restart: bool = False
    moved: bool = False
    consumed: bool = False
    refused: str | None = None


def obey(situation: Situation, *, stable: str) -> Orders:
    """What holds now, after the annotation's value and after another edit."""
    control, target, command = situation.control, situation.target, situation.command
    if control.aborted not in (None, target):
        control = replace(control, aborted=None, why=None)
    if control.promoted not in (None, target):
        control = replace(control, promoted=None)
    if command is None:
        return Orders(replace(control, handled=None))
    if command == control.handled:
        return Orders(control, consumed=True)
    return replace(_carry_out(situation, replace(control, handled=command), command, stable), consumed=True)


def _carry_out(situation: Situation, control: Control, command: str, stable: str) -> Orders:
    target = situation.target
    candidate = target != stable
    if command == "pause":
        return Orders(replace(control, paused=True))
    if command == "resume":
        if control.paused:
            return Orders(replace(control, paused=False), moved=True)
        if situation.progress is None or situation.progress.step_since is None:
            return Orders(
                control, refused="nothing is paused, and no step waits: its pods are not ready yet, or it is over"
            )
        return Orders(control, released=True, moved=True)
    if command == "promote":
        if not candidate or control.aborted:
            return Orders(control, refused="there is no candidate to promote")
        return Orders(replace(control, promoted=target, paused=False), moved=True)
    if command == "abort":
        if not candidate:
            return Orders(control, refused="there is no rollout to abort: the stable revision is the wanted one")
        return Orders(replace(control, aborted=target, why="the annotation said so", promoted=None, paused=False))
    if command == "retry":
        return Orders(replace(control, aborted=None, why=None, promoted=None), restart=True)
    return Orders(control, refused=f"it must be one of {', '.join(COMMANDS)}, not {command!r}")
