"""One look at a rollout: from what is seen to sizes, weights, what to remember, and when to look again. Pure.

The strategies differ in what they aim at (`Aim`): goals for the sizes, and weights. Everything else is common: whoever has lost
its requests drains before it goes, a candidate that crashes takes nothing from the stable revision, a pause holds all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from quire_operator.policy.aims import Aim, aim_of
from quire_operator.policy.commands import Orders, obey
from quire_operator.policy.sizes import held, next_sizes, recreate
from quire_operator.policy.views import Control, Progress, RevisionView, Situation, find
from quire_operator.policy.weights import by_pods

SETTLE_S = 5.0
"""Within this time every router has heard of a weight, and the pods' counts of requests are of after that."""
DRAIN_LOOK_S = 1.0

Hold = Literal["Paused", "StepPaused", "Draining", "Aborted"]


@dataclass(frozen=True)
class Decision:
    """goal: the revision everything moves to: the wanted one, or the stable one after an abort.

    unrouted: since when a revision with ready pods gets no requests. progress: None when nothing is under way. hold: why it
    does not move on now. late: no progress for longer than the deadline. refused: why the annotation had no effect.
    """

    goal: str
    stable: str
    sizes: Mapping[str, int]
    weights: Mapping[str, int]
    unrouted: Mapping[str, float]
    delete: tuple[str, ...]
    progress: Progress | None
    control: Control
    hold: Hold | None = None
    late: bool = False
    again_s: float | None = None
    consumed: bool = False
    refused: str | None = None


def decide(situation: Situation) -> Decision:
    """Call it after every change and after `again_s`, until `progress` is None."""
    stable = stable_of(situation)
    orders = obey(situation, stable=stable)
    control = orders.control
    if situation.verdict == "fail" and stable != situation.target and control.aborted is None:
        control = replace(control, aborted=situation.target, why="its analysis failed", promoted=None)
    goal = stable if control.aborted == situation.target else situation.target
    decision = _towards(situation, goal, stable, replace(orders, control=control))
    if _gives_up(situation, decision):
        view = find(situation.views, goal)
        given_up = replace(control, aborted=goal, why=_why_given_up(situation, decision, view), promoted=None)
        decision = _towards(situation, stable, stable, replace(orders, control=given_up))
    return decision


def stable_of(situation: Situation) -> str:
    """The revision to protect: the last one that was complete, or what serves in its place."""
    target, progress = situation.target, situation.progress
    if progress is not None and progress.revision not in (target, situation.stable):
        # Superseded after everything had moved to it: going back would be a rollback that nobody asked for.
        moved = find(situation.views, progress.revision)
        if moved.weight == 100 and moved.kept_ready >= situation.wanted > 0 and _steps_done(situation, moved.name):
            return moved.name
    known = next((view for view in situation.views if view.name == situation.stable), None)
    if known is not None and (known.ready or known.desired):
        return known.name
    others = [view for view in situation.views if view.name != target and (view.ready or view.desired)]
    if others:
        return max(others, key=lambda view: (view.ready, view.desired, view.created, view.name)).name
    # Nothing else has pods. In the middle of a rollout (to zero and back, Recreate) the way back is kept all the same.
    amid = progress is not None and progress.revision in (target, situation.stable)
    if known is not None and (amid or situation.control.aborted == target):
        return known.name
    return target


def _towards(situation: Situation, goal: str, stable: str, orders: Orders) -> Decision:
    now, wanted, control = situation.now, situation.wanted, orders.control
    seen = _in_order(situation.views, goal, stable)
    candidate = find(seen, goal)
    # Only pods that have proven themselves let a candidate take anything from the others.
    views = tuple(view.proven if view.name == goal != stable else view for view in seen)
    progress = situation.progress
    complete = _complete(situation, views, goal, stable)
    if complete:
        stable = goal
    fresh = progress is None or progress.revision != goal or orders.restart
    if progress is None or fresh:
        progress = Progress(goal, started=now, progressed=now)
    elif orders.moved:
        progress = replace(progress, progressed=now)

    aim = aim_of(situation, goal, stable, views, progress, orders, fresh=fresh)
    if not situation.strategy.by_weight or not any(view.ready for view in views):
        aim = replace(
            aim, weights=by_pods(seen)
        )  # the Service asks every ready pod; and where nobody else could answer
    unrouted = _unrouted(views, aim.weights, now) if situation.strategy.by_weight else {}
    sizes, drain_left = _sizes(situation, goal, stable, views, aim, unrouted, paused=control.paused)
    progress = _advance(progress, aim.progress, views, now, situation.strategy.deadline_s)
    if situation.strategy.name == "BlueGreen" and goal != stable:
        progress = _broken(progress, candidate, wanted, now)
    breaks = progress.broken_since is not None and find(views, goal).ready < wanted
    aborted = control.aborted == situation.target
    hold: Hold | None = None
    if control.paused and _under_way(views, goal, stable):
        hold = "Paused"
    elif aim.waiting and not breaks:
        hold = "StepPaused"
    elif drain_left is not None:
        hold = "Draining"
    elif aborted and complete:
        hold = "Aborted"

    # Coming back is no progress for what was whole and broke: it will again.
    since = progress.broken_since if breaks and progress.broken_since is not None else progress.progressed
    left = situation.strategy.deadline_s - (now - since)
    counting = not complete and wanted > 0 and hold is None
    waits = [aim.pause_left_s] if aim.pause_left_s is not None and hold == "StepPaused" else []
    waits += [left] if counting and left > 0 else []
    waits += [drain_left] if drain_left is not None else []
    waits += candidate.settling if goal != stable else ()
    keep = {goal, stable, situation.target}
    return Decision(
        goal=goal,
        stable=stable,
        sizes=sizes,
        weights=aim.weights,
        unrouted=unrouted,
        delete=_too_old(views, keep, situation.strategy.history),
        progress=None if complete else progress,
        control=replace(control, promoted=None) if complete else control,
        hold=hold,
        late=counting and left <= 0,
        again_s=max(min(waits), 0.0) if waits else None,
        consumed=orders.consumed,
        refused=orders.refused,
    )


def _under_way(views: Sequence[RevisionView], goal: str, stable: str) -> bool:
    return goal != stable or any(view.desired for view in views if view.name != goal)


def _unrouted(views: Sequence[RevisionView], weights: Mapping[str, int], now: float) -> dict[str, float]:
    return {
        view.name: now if view.unrouted_at is None else min(view.unrouted_at, now)
        for view in views
        if weights[view.name] == 0 and view.ready > 0
    }


def _sizes(
    situation: Situation,
    goal: str,
    stable: str,
    views: Sequence[RevisionView],
    aim: Aim,
    unrouted: Mapping[str, float],
    *,
    paused: bool,
) -> tuple[dict[str, int], float | None]:
    """The sizes, and the seconds until it is worth a look whether what holds them up has drained; None: nothing does."""
    wanted, strategy = situation.wanted, situation.strategy
    if wanted == 0:
        return {view.name: 0 for view in views} | {goal: 0}, None
    goals = aim.goals
    new, old = find(views, goal), find(views, stable)
    if paused and _under_way(views, goal, stable):
        begun = new.ready or (strategy.name == "Recreate" and new.desired)
        serving = goal if begun and not old.ready else stable
        idle = {view.name for view in views if strategy.by_weight and aim.weights[view.name] == 0}
        in_order = sorted(views, key=lambda view: view.name == stable)
        goals = held(wanted, in_order, aim.limits, serving=serving, unrouted=idle)
    elif strategy.name == "Recreate":
        return recreate(goal, wanted, views), None
    if not strategy.by_weight:
        return next_sizes(goals, wanted, views, aim.limits), None
    aside = {view.name for view in views if aim.weights[view.name] == 0 or view.weight == 0}
    if goal != stable and new.ready < wanted:
        # The stable revision may be without requests because its pods are not ready now. They are missed all the same.
        if old.ready == 0:
            aside.discard(stable)
        elif old.weight == 0 and aim.weights[stable] > 0:
            goals = {**goals, stable: max(old.desired, goals.get(stable, 0))}
    waits = {
        view.name: left
        for view in views
        if view.name in aside and (left := _drain_left(situation, view, unrouted, goal, stable)) > 0
    }
    sizes = next_sizes(goals, wanted, views, aim.limits, unrouted=aside, locked=waits)
    leaving = [waits[view.name] for view in views if view.name in waits and view.kept_ready > goals.get(view.name, 0)]
    return sizes, min(leaving) if leaving else None


def _drain_left(
    situation: Situation, view: RevisionView, unrouted: Mapping[str, float], goal: str, stable: str
) -> float:
    """Seconds until its drain should be looked at; 0: every router knows that it gets nothing, and it has answered what it had."""
    if view.ready == 0:
        return 0.0
    if view.weight != 0 or view.name not in unrouted or view.unrouted_at is None:
        return DRAIN_LOOK_S
    strategy = situation.strategy
    passed = situation.now - unrouted[view.name]
    keep = strategy.keep_old_s if strategy.name == "BlueGreen" and view.name == stable != goal else 0.0
    if passed < max(keep, SETTLE_S):
        return max(keep, SETTLE_S) - passed
    return 0.0 if view.in_flight == 0 or passed >= strategy.drain_s else DRAIN_LOOK_S


def _advance(
    before: Progress, after: Progress, views: Sequence[RevisionView], now: float, deadline_s: float
) -> Progress:
    """Progress is a step, or more ready pods than ever before: one that comes and goes is none."""
    peak = max(before.peak, find(views, before.revision).ready)
    moved = peak > before.peak or after.step != before.step
    if before.step_since is not None and after.step_since is None:
        # A long wait that is lost has used up the deadline, and nobody was late.
        moved = moved or now - before.step_since >= deadline_s
    return replace(after, peak=peak, progressed=now if moved else min(before.progressed, now))


def _broken(progress: Progress, seen: RevisionView, wanted: int, now: float) -> Progress:
    """From the first time on that a candidate which had been whole is not, because pods ended by themselves."""
    if progress.broken_since is not None:
        return replace(progress, broken_since=min(progress.broken_since, now))
    was_whole = progress.peak >= wanted > 0
    return (
        replace(progress, broken_since=now)
        if was_whole and seen.fallen > 0 and seen.proven.ready < wanted
        else progress
    )


def _whole(views: Sequence[RevisionView], goal: str, wanted: int) -> bool:
    """The wanted size, all ready, and no other revision left that a request could reach."""
    view = find(views, goal)
    alone = not any(other.desired or other.ready for other in views if other.name != goal)
    return alone and view.desired == wanted and view.ready >= wanted


def _complete(situation: Situation, views: Sequence[RevisionView], goal: str, stable: str) -> bool:
    """At zero a rollout under way stays where it is; steps that are left are waited for, whatever the sizes are."""
    if not _whole(views, goal, situation.wanted):
        return False
    if goal == stable:
        return True
    return situation.wanted > 0 and (not situation.strategy.by_weight or _steps_done(situation, goal))


def _steps_done(situation: Situation, revision: str) -> bool:
    progress = situation.progress
    return progress is not None and progress.revision == revision and progress.step >= len(situation.strategy.steps)


def _gives_up(situation: Situation, decision: Decision) -> bool:
    """A candidate that does not work has to give its room back: without surge it stands where a stable pod stood, and a BlueGreen's
    takes that of the whole service again. The latter only while the old set can take all requests."""
    strategy, goal, stable = situation.strategy, decision.goal, decision.stable
    known = any(view.name == stable for view in situation.views)
    if goal == stable or not known or decision.control.paused:
        return False
    new, old = find(situation.views, goal), find(situation.views, stable)
    if strategy.name == "BlueGreen":
        return decision.late and old.kept_ready >= situation.wanted
    if strategy.name == "Recreate" or strategy.limits.max_surge > 0:
        return False
    broken = new.ready == 0 and (new.crashing or decision.late)
    return broken and old.kept_ready < situation.wanted


def _why_given_up(situation: Situation, decision: Decision, view: RevisionView) -> str:
    if decision.progress is not None and decision.progress.broken_since is not None:
        why = "its pods were ready and keep ending by themselves, for longer than progressDeadline"
    elif view.crashing:
        why = "its pods crash"
    else:
        why = "it made no progress within progressDeadline"
    room = "its pods take the room of the others" if situation.strategy.name != "BlueGreen" else ""
    return f"{why}, and with maxSurge 0 {room}" if room else why


def _in_order(views: Sequence[RevisionView], goal: str, stable: str) -> tuple[RevisionView, ...]:
    """In the order in which they may shrink: superseded ones, the oldest first; the stable one; the goal."""
    known = views if any(view.name == goal for view in views) else (*views, RevisionView(goal, 0, 0, 0))
    return tuple(sorted(known, key=lambda view: (view.name == goal, view.name == stable, view.created, view.name)))


def _too_old(views: Sequence[RevisionView], keep: set[str], history: int) -> tuple[str, ...]:
    empty = [view for view in views if view.name not in keep and view.desired == 0 and view.pods == 0]
    newest_first = sorted(empty, key=lambda view: (view.created, view.name), reverse=True)
    return tuple(view.name for view in newest_first[history:])
