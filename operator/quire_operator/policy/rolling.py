"""Moves replicas from old revisions to the wanted one, one safe step at a time. Pure.

A rolling update, a scale-out, a scale-in and a return to an old template are the same function: from what is seen to
the replicas each workload should have now. It is called again after every change until nothing moves.

Safety: `ready` below counts only pods that the workload would keep at its present size, so a decision that the
cluster has not carried out yet is never counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RevisionView:
    """One revision's workload as seen. `pods` includes those being deleted, `ready` does not."""

    name: str
    desired: int
    ready: int
    pods: int
    created: str = ""

    @property
    def kept_ready(self) -> int:
        """Ready pods that stay if the workload keeps its size; a workload that shrinks drops unready pods first."""
        return min(self.ready, self.desired)

    @property
    def unready(self) -> int:
        return self.desired - self.kept_ready


@dataclass(frozen=True)
class Limits:
    """How far the number of pods may stray from the wanted one."""

    max_surge: int
    max_unavailable: int
    strategy: Literal["RollingUpdate", "Recreate"] = "RollingUpdate"


def next_replicas(target: str, wanted: int, views: Sequence[RevisionView], limits: Limits) -> dict[str, int]:
    """Replicas per revision to set now; `target` is always in the answer, other names only if they are in `views`."""
    old = sorted((view for view in views if view.name != target), key=lambda view: (view.created, view.name))
    new = next((view for view in views if view.name == target), RevisionView(target, 0, 0, 0))
    if wanted == 0:
        return {target: 0, **{view.name: 0 for view in old}}
    if limits.strategy == "Recreate":
        return _recreate(new, wanted, old)
    return _rolling(new, wanted, old, limits)


def _recreate(new: RevisionView, wanted: int, old: Sequence[RevisionView]) -> dict[str, int]:
    gone = all(view.pods == 0 and view.desired == 0 for view in old)
    return {new.name: wanted if gone else 0, **{view.name: 0 for view in old}}


def _rolling(new: RevisionView, wanted: int, old: Sequence[RevisionView], limits: Limits) -> dict[str, int]:
    sizes = {view.name: view.desired for view in old}
    total_old = sum(sizes.values())
    if total_old == 0:
        return {new.name: wanted, **sizes}

    room = wanted + limits.max_surge - total_old - new.desired
    if new.desired >= wanted:
        size_new = wanted
    else:
        size_new = min(wanted, new.desired + max(room, 0))

    minimum = max(wanted - limits.max_unavailable, 0)
    if new.ready == 0 and any(view.kept_ready for view in old):
        # Nobody knows yet whether the new revision works. It gets the pods that a roll begins with and no more;
        # growth meanwhile (an autoscaler under load) goes to a revision that does serve.
        size_new = min(size_new, max(new.desired, limits.max_surge + limits.max_unavailable))
        _grow(sizes, old, min(wanted + limits.max_surge - total_old - size_new, minimum - total_old))
        total_old = sum(sizes.values())

    # Pods that must stay ready, and what may go without touching them. New pods that are not ready yet
    # count against the room, as they are capacity that is promised but not there.
    ready_new = min(new.kept_ready, size_new)
    removable = total_old + ready_new - minimum
    _shrink(sizes, {view.name: view.unready for view in old}, max(removable, 0))

    ready_old = {view.name: min(view.kept_ready, sizes[view.name]) for view in old}
    spare = sum(ready_old.values()) + ready_new - minimum
    _shrink(sizes, ready_old, max(spare, 0))
    return {new.name: size_new, **sizes}


def _grow(sizes: dict[str, int], old: Sequence[RevisionView], budget: int) -> None:
    """Add `budget` pods to the newest old revision that serves."""
    sizes[[view.name for view in old if view.kept_ready][-1]] += max(budget, 0)


def _shrink(sizes: dict[str, int], available: dict[str, int], budget: int) -> None:
    """Take up to `budget` pods away, at most `available[name]` of each, the oldest revision first."""
    for name, most in available.items():
        step = min(most, sizes[name], budget)
        sizes[name] -= step
        budget -= step
