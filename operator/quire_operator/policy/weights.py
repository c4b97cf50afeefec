"""Percent of the requests for each revision: only to ready pods, and 100 together. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quire_operator.policy.views import RevisionView


def by_pods(views: Sequence[RevisionView]) -> dict[str, int]:
    """Each ready pod takes the same share (0 everywhere: none is ready)."""
    return _in_parts(100, {view.name: view.ready for view in views})


def split(
    views: Sequence[RevisionView], share: int, *, candidate: str, stable: str, enough: int = 0, mixed: bool = True
) -> dict[str, int]:
    """`share` percent to the candidate and the rest to what serves beside it: the stable revision, if it can.

    Where one of the two has no ready pod the other one gets all; where both have none, the revision with the most ready
    pods does: an answer from an old revision is better than none. A revision that is left (superseded, aborted) keeps
    of its requests what the stable one has not the pods for; `enough` ready ones take all. Not mixed: it is all or nothing.
    """
    ready = {view.name: view for view in views if view.ready > 0}
    out = {view.name: 0 for view in views}
    beside = _beside(ready, candidate, stable, enough, mixed=mixed)
    if candidate in ready and candidate != stable:
        share = share if beside else 100
        return {**out, **_in_parts(100 - share, beside), candidate: share}
    if not beside and ready:
        beside = {max(ready.values(), key=lambda view: (view.ready, view.name)).name: 100}
    return {**out, **beside}


def _beside(
    ready: Mapping[str, RevisionView], candidate: str, stable: str, enough: int, *, mixed: bool
) -> dict[str, int]:
    left = {name: view.weight for name, view in ready.items() if name not in (candidate, stable) and view.weight > 0}
    old = ready.get(stable)
    if not left or (old is not None and old.ready >= enough):
        return {stable: 100} if old is not None else {}
    if not mixed:
        return {max(left, key=lambda name: (left[name], name)): 100}
    back = min(max(100 * old.ready // enough, old.weight), 100) if old is not None else 0
    return {**_in_parts(100 - back, left), **({stable: back} if old is not None else {})}


def _in_parts(total: int, parts: Mapping[str, int]) -> dict[str, int]:
    """`total` in proportion to `parts`; largest remainders get what rounding left, so nothing is lost."""
    whole = sum(parts.values())
    if whole == 0:
        return dict.fromkeys(parts, 0)
    shares = {name: total * part / whole for name, part in parts.items()}
    out = {name: int(share) for name, share in shares.items()}
    largest = sorted(out, key=lambda name: (out[name] - shares[name], name))
    for name in largest[: total - sum(out.values())]:
        out[name] += 1
    return out


def canary_share(weight: int, ready: int, size: int) -> int:
    """The step's weight, less while some of its pods are missing: no pod of the candidate carries more than was meant."""
    if ready <= 0:
        return 0
    return max(weight * min(ready, size) // max(size, 1), 1)
