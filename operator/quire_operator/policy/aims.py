"""What each strategy aims at now: sizes to move to, shares of the requests, and the step it stands on. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quire_operator.policy.commands import Orders
from quire_operator.policy.views import Limits, Progress, RevisionView, Situation, Step, find
from quire_operator.policy.weights import by_pods, canary_share, split


@dataclass(frozen=True)
class Aim:
    """goals: sizes, in the order in which they may grow. waiting: the step is held, for `pause_left_s` more; None: until somebody says so."""

    goals: Mapping[str, int]
    weights: Mapping[str, int]
    progress: Progress
    limits: Limits
    pause_left_s: float | None = None
    waiting: bool = False


def aim_of(
    situation: Situation,
    goal: str,
    stable: str,
    views: Sequence[RevisionView],
    progress: Progress,
    orders: Orders,
    *,
    fresh: bool,
) -> Aim:
    wanted, strategy = situation.wanted, situation.strategy
    limits = strategy.limits
    new, old = find(views, goal), find(views, stable)
    if new.crashing and new.ready == 0 and goal != stable:
        limits = replace(limits, max_unavailable=0)
    if strategy.name == "BlueGreen":
        limits = replace(limits, max_surge=max(wanted, limits.max_surge))
    if not strategy.by_weight:
        return Aim(_rolling_goals(goal, stable, wanted, views, limits), by_pods(views), progress, limits)

    def shares(share: int) -> Mapping[str, int]:
        enough = limits.least(wanted)
        return split(views, share, candidate=goal, stable=stable, enough=enough, mixed=strategy.name != "BlueGreen")

    if goal == stable:
        return Aim({goal: wanted}, shares(100), progress, limits)

    steps = strategy.steps
    if orders.control.promoted == goal:
        progress = replace(progress, step=max(progress.step, len(steps)), step_since=None)
    elif progress.step > len(steps):
        progress = replace(progress, step=len(steps), step_since=None)
    fell = strategy.name == "BlueGreen" and _fell(situation, new, old)
    if fell and orders.control.promoted != goal:
        # Proven by time and still broken: it begins again, with its whole pause.
        progress = replace(progress, step=0, step_since=None)
    if progress.step >= len(steps):
        share = 0 if fell else _last_share(situation, new, old)
        # The old set is the way back until the new one is whole.
        held = {stable: min(old.desired, wanted)} if strategy.name == "BlueGreen" and new.ready < wanted else {}
        return Aim({**held, goal: wanted}, shares(share), progress, limits)

    step = steps[progress.step]
    if strategy.name == "BlueGreen":
        size, grown, keep, share = wanted, wanted, wanted, 0
    else:
        size = grown = _canary_size(step.weight, wanted)
        if step.weight < 100:
            # Somebody must be left to give the rest to; a single pod without surge is the exception.
            size = grown = max(min(size, limits.most(wanted) - 1), 1)
        share = canary_share(step.weight, new.ready, size)
        if new.ready == 0:
            grown = _beginning(new, size, limits)
        keep = max(min(wanted, limits.most(wanted) - grown), 0)
    progress, left, waiting = _hold_step(situation, progress, step, orders, new, reached=new.ready >= size)
    # The status names the candidate with weight 0 before its first pod is made, so no pod of it meets a router that does not know.
    goals = {stable: keep, goal: new.desired if fresh else grown}
    return Aim(goals, shares(share), progress, limits, left, waiting)


def _rolling_goals(
    goal: str, stable: str, wanted: int, views: Sequence[RevisionView], limits: Limits
) -> Mapping[str, int]:
    new = find(views, goal)
    others = [view for view in views if view.name != goal]
    serving = [view for view in others if view.kept_ready] or [view for view in others if view.name == stable]
    if new.ready or not serving:
        return {goal: wanted}
    # Where nothing serves (after zero), the proven revision comes back before the new one is trusted.
    keep = next((view for view in serving if view.name == stable), serving[-1])
    total = sum(view.desired for view in others)
    return {
        keep.name: max(keep.desired + limits.least(wanted) - total, 0),
        goal: _beginning(new, wanted, limits),
    }


def _beginning(new: RevisionView, most: int, limits: Limits) -> int:
    """Nobody knows yet whether the new revision works. It gets the pods that a roll begins with and no more; growth
    meanwhile (an autoscaler under load) goes to a revision that does serve."""
    return min(most, max(new.desired, limits.max_surge + limits.max_unavailable))


def _canary_size(weight: int, wanted: int) -> int:
    return min(max(math.ceil(weight * wanted / 100), 1), wanted)


def _fell(situation: Situation, new: RevisionView, old: RevisionView) -> bool:
    """Requests went to a candidate some of whose pods have ended by themselves since, while the old set can take them all."""
    return new.weight == 100 and new.fallen > 0 and new.ready < situation.wanted and old.kept_ready >= situation.wanted


def _last_share(situation: Situation, new: RevisionView, old: RevisionView) -> int:
    """After the steps: everything once the candidate is whole; until then Canary follows the pods, BlueGreen waits."""
    # `unrouted_at`: the old one lost its requests because the candidate was whole, not because its own pods were gone.
    switched = new.weight == 100 and new.ready > 0 and (old.ready == 0 or old.unrouted_at is not None)
    if new.ready >= situation.wanted or switched:
        return 100
    if situation.strategy.name == "BlueGreen":
        return 0
    last = situation.strategy.steps[-1].weight
    size = _canary_size(last, situation.wanted)
    by_ready = 100 * new.ready // max(new.ready + old.ready, 1)
    return max(canary_share(last, new.ready, size), by_ready)


def _hold_step(
    situation: Situation, progress: Progress, step: Step, orders: Orders, new: RevisionView, *, reached: bool
) -> tuple[Progress, float | None, bool]:
    """The progress, the seconds of the pause that are left, and whether somebody or the time is waited for."""
    if orders.control.paused:
        return progress, None, False
    if not reached and (progress.step_since is None or new.ready == 0):
        return replace(progress, step_since=None), None, False
    since = situation.now if progress.step_since is None else min(progress.step_since, situation.now)
    waits = replace(progress, step_since=since)
    if progress.step_since is None:
        return waits, step.pause_s, True
    elapsed = situation.now - since
    over = orders.released or (step.pause_s is not None and elapsed >= step.pause_s)
    if over and not reached and not orders.released:
        return waits, None, False
    if over and situation.verdict != "wait":
        return replace(progress, step=progress.step + 1, step_since=None), None, False
    return waits, None if over or step.pause_s is None else step.pause_s - elapsed, True
