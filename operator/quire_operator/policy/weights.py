"""Percent of the requests for each revision: only to ready pods, and 100 together. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from quire_operator.policy.views import RevisionView


def by_pods(views: Sequence[RevisionView]) -> dict[str, int]:
    """Each ready pod takes the same share; largest remainders get what rounding left, so the sum is 100 (or 0: none is ready)."""
    total = sum(view.ready for view in views)
    if total == 0:
        return {view.name: 0 for view in views}
    shares = {view.name: 100 * view.ready / total for view in views}
    out = {name: int(share) for name, share in shares.items()}
    largest = sorted(out, key=lambda name: (out[name] - shares[name], name))
    for name in largest[: 100 - sum(out.values())]:
        out[name] += 1
    return out


def split(views: Sequence[RevisionView], share: int, *, candidate: str, stable: str) -> dict[str, int]:
    """`share` percent to the candidate and the rest to the stable revision.

    Where one of the two has no ready pod the other one gets all; where both have none, the revision with the most ready
    pods does: an answer from an old revision is better than none.
    """
    ready = {view.name: view.ready for view in views if view.ready > 0}
    out = {view.name: 0 for view in views}
    if candidate in ready and stable in ready and candidate != stable:
        return {**out, candidate: share, stable: 100 - share}
    most = max(ready, key=lambda name: (ready[name], name), default="")
    one = next((name for name in (candidate, stable) if name in ready), most)
    return {**out, one: 100} if one else out


def canary_share(weight: int, ready: int, size: int) -> int:
    """The step's weight, less while some of its pods are missing: no pod of the candidate carries more than was meant."""
    if ready <= 0:
        return 0
    return max(weight * min(ready, size) // max(size, 1), 1)
