"""Who of several operators writes: what to do about the Lease, and for how long it holds what was achieved. Pure.

A leader counts from before its request was sent, the others from when they saw the answer's effect, each by a clock of its own; and it
stops earlier than they begin. So there are never two, whatever stops, and for how long, as long as all clocks run equally fast.
Times are seconds of the clock of the one that decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LEASE_S = 12
"""Without a sign of life for so long, others take over."""
LEAD_S = 9.0
"""A leader that could not renew for so long writes no more; what it has sent by then has the rest to arrive."""
RENEW_S = 2.0
"""From the beginning of one turn to that of the next."""
REQUEST_S = LEAD_S / 2
"""One request about the Lease: of one that hangs, another try is left while the lead lasts."""

Move = Literal["create", "renew", "take", "wait"]


@dataclass(frozen=True)
class LeaseView:
    """What the Lease says. `holder` is empty when it was given back; `version` changes with every write."""

    holder: str
    version: str
    duration_s: float
    transitions: int = 0
    acquired: str | None = None


@dataclass(frozen=True)
class Sighting:
    """A version of the Lease, and since when it has been seen."""

    lease: LeaseView
    since: float


def sighted(before: Sighting | None, lease: LeaseView | None, now: float) -> Sighting | None:
    """A version that was seen before keeps its time. A Lease that is deleted goes on until it would have run out: its holder may not know yet."""
    if lease is None:
        return before if before is not None and before.lease.holder and left_s(before, now) > 0 else None
    return before if before is not None and before.lease.version == lease.version else Sighting(lease, now)


def next_move(me: str, seen: Sighting | None, now: float) -> Move:
    """What to do now. Times in the Lease are not looked at: they are of another machine's clock."""
    if seen is None:
        return "create"
    if seen.lease.holder == me:
        return "renew"
    return "take" if not seen.lease.holder or left_s(seen, now) <= 0 else "wait"


def left_s(seen: Sighting, now: float) -> float:
    """Seconds until a Lease of somebody else may be taken."""
    return seen.since + seen.lease.duration_s - now
