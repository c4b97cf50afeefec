"""Moves the sizes of revisions one safe step towards their goals. Pure.

A rolling update, a canary step, a scale-out, a scale-in, an abort and a return to an old template are the same function with
other goals. It is called again after every change until nothing moves.

Safety: the pods that must answer are counted as ready only where the workload would keep them at its present size, so
a decision that the cluster has not carried out yet is never counted twice; and only where requests go to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quire_operator.policy.views import Limits, RevisionView


def next_sizes(
    goals: Mapping[str, int],
    wanted: int,
    views: Sequence[RevisionView],
    limits: Limits,
    *,
    unrouted: Collection[str] = (),
    locked: Collection[str] = (),
) -> dict[str, int]:
    """The size of every revision of `views` and `goals` to set now.

    goals: sizes aimed at, in the order in which they may grow; revisions not named go to 0. views: in the order in which
    they may shrink. unrouted: revisions whose pods get no requests, so that they may not be counted on, nor be missed.
    locked: revisions that must keep every ready pod for now.
    """
    sizes = {view.name: view.desired for view in views}
    sizes |= {name: 0 for name in goals if name not in sizes}
    room = limits.most(wanted) - sum(sizes.values())
    for name, goal in goals.items():
        growth = min(max(goal - sizes[name], 0), max(room, 0))
        sizes[name] += growth
        room -= growth

    over = [view for view in views if view.desired > goals.get(view.name, 0)]
    least = limits.least(wanted)
    counted = [view for view in over if view.name not in unrouted]
    steady = sum(view.kept_ready for view in views if view not in over and view.name not in unrouted)

    # Pods that are not ready go first, as long as enough of them are left to become it.
    budget = max(steady + sum(sizes[view.name] for view in counted) - least, 0)
    for view in over:
        surplus = sizes[view.name] - goals.get(view.name, 0)
        gone = min(view.unready, surplus, budget if view in counted else surplus)
        sizes[view.name] -= gone
        budget -= gone if view in counted else 0

    spare = max(steady + sum(view.ready_at(sizes[view.name]) for view in counted) - least, 0)
    for view in over:
        if view.name in locked:
            continue
        surplus = sizes[view.name] - goals.get(view.name, 0)
        if view in counted:
            surplus, cost = _affordable(view, sizes[view.name], surplus, spare)
            spare -= cost
        sizes[view.name] -= surplus
    return sizes


def _affordable(view: RevisionView, size: int, surplus: int, spare: int) -> tuple[int, int]:
    """How many of `surplus` pods may go at the cost of at most `spare` ready ones, and that cost."""
    if view.places is None:
        taken = min(surplus, view.ready_at(size), spare)
        return taken, taken
    before = view.ready_at(size)
    taken = next(n for n in range(surplus, -1, -1) if before - view.ready_at(size - n) <= spare)
    return taken, before - view.ready_at(size - taken)


def recreate(target: str, wanted: int, views: Sequence[RevisionView]) -> dict[str, int]:
    """No pod of the target before the last pod of every other revision is gone."""
    others = [view for view in views if view.name != target]
    gone = all(view.pods == 0 and view.desired == 0 for view in others)
    return {target: wanted if gone else 0, **{view.name: 0 for view in others}}


def held(
    wanted: int, views: Sequence[RevisionView], limits: Limits, *, serving: str, unrouted: Collection[str] = ()
) -> dict[str, int]:
    """Goals of a paused rollout: what is there, scaled with the demand. `serving` grows; `views` shrink in their order.

    Pods of the others are capacity where they are ready and get requests; those that are not take room all the same.
    """
    goals = {view.name: min(view.desired, wanted) for view in views}
    room = limits.most(wanted) - sum(goals.values())
    others = (view for view in views if view.name != serving and view.name not in unrouted)
    capacity = goals.get(serving, 0) + sum(view.ready_at(goals[view.name]) for view in others)
    goals[serving] = goals.get(serving, 0) + max(min(wanted - capacity, room), 0)
    excess = max(-room, 0)
    for view in views:
        cut = min(excess, goals[view.name])
        goals[view.name] -= cut
        excess -= cut
    return goals
