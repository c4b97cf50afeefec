"""Which commands make sense now, and what became of one. Pure; the operator's own judgement (`policy.commands`) comes first."""

from __future__ import annotations

from quire_operator import labels
from quire_operator.policy import Situation, control_of, progress_of, strategy_of
from quire_operator.policy.commands import obey
from quire_operator.spec import Deployment


def objection(owner: Deployment, command: str) -> str | None:
    """Why the command would do nothing now; None: send it.

    While the operator has not seen the last edit the status tells of the time before, so nothing is held against a command.
    """
    status = owner.status
    if owner.command is not None and owner.command != command:
        return f"the command {owner.command} before it is not carried out yet: is the operator running?"
    if status.observed_generation != owner.generation or status.updated_revision is None:
        return None
    situation = _situation(owner, command)
    control, target, stable = situation.control, situation.target, situation.stable or situation.target
    refused = obey(situation, stable=stable).refused
    if refused is not None:
        return refused
    if command == "pause" and control.paused:
        return "it is paused already; resume goes on"
    if command == "promote" and not situation.strategy.by_weight and not control.paused:
        return f"strategy {situation.strategy.name} has no steps that could be left out"
    if command == "abort" and control.aborted == target:
        return f"revision {target} is aborted already; retry tries it again"
    if command == "retry" and target == stable and control.aborted is None:
        return f"there is nothing to try again: revision {target} is the stable one"
    return None


def failed(owner: Deployment, command: str) -> str | None:
    """Once the operator has taken the annotation away: why the command had no effect; None: it had one."""
    control, target = control_of(owner.status), owner.status.updated_revision
    told = (
        f"the operator took the command and changed nothing; kubectl describe {labels.SHORT_NAME} {owner.name} says why"
    )
    if command == "pause":
        return None if control.paused else told
    if command == "abort":
        return None if control.aborted is not None or target == owner.status.current_revision else told
    if command == "promote":
        done = owner.status.rollout is None or control.promoted is not None
        return None if done else told
    if command == "retry":
        return told if control.aborted is not None else None
    return told if control.paused else None


def outcome(owner: Deployment, command: str) -> str:
    """One sentence: what holds now."""
    status = owner.status
    progressing = next((each for each in status.conditions if each.type == "Progressing"), None)
    message = status.rollout.message if status.rollout is not None else progressing.message if progressing else ""
    done = {
        "pause": "paused",
        "resume": "goes on",
        "promote": "promoted",
        "abort": "aborted",
        "retry": "begins again",
    }[command]
    if command == "pause" and status.rollout is None:
        message = "the next edit waits until resume"
    message = message.removeprefix("paused; ")
    return f"{owner.name} {done}: {message}" if message else f"{owner.name} {done}"


def not_scalable(owner: Deployment, replicas: int) -> str | None:
    """Why spec.replicas is not the user's to set."""
    scaling = owner.spec.autoscaling
    if scaling is None:
        return None
    return (
        f"spec.autoscaling owns the replicas of {owner.name} ({scaling.min_replicas} to {scaling.max_replicas}): an autoscaler would "
        f"put {replicas} back; edit minReplicas and maxReplicas, or remove spec.autoscaling"
    )


def _situation(owner: Deployment, command: str) -> Situation:
    status = owner.status
    return Situation(
        target=status.updated_revision or "",
        wanted=owner.wanted_replicas,
        views=(),
        strategy=strategy_of(owner.spec),
        now=0.0,
        stable=status.current_revision,
        progress=progress_of(status),
        control=control_of(status),
        command=command,
    )
