"""The memory that a plan may use: of a container, of a machine that others use too, of a GPU. Pure.

Each says how much of it is planned, what it is called in a sentence, and what would make it more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from quire.engine.host import HostMemory

LIMIT_SHARE = 0.90
"""Of main memory this much is planned; the rest is for the server process and for what is not counted."""
FREE_SHARE = 0.25
"""Without a limit the machine is shared with others: a pool of default size takes at most this much of what is free."""
MIB = 1 << 20
_UNITS = ((MIB, "Mi"), (1024, "Ki"))


class Budget(Protocol):
    """Bytes, and words about them."""

    @property
    def available(self) -> int:
        """What can be taken."""
        ...

    @property
    def usable(self) -> int:
        """What of it is planned."""
        ...

    @property
    def pool(self) -> int:
        """A KV pool of default size takes that much at most."""
        ...

    @property
    def words(self) -> str:
        """`usable`, as it follows "more than"."""
        ...

    def more(self, missing: int, full: int = 0, purpose: str = "") -> str:
        """What to do so that `missing` bytes more are usable, empty where there are none to be had; and behind it how far to go for a
        purpose that takes `full` bytes more, where that is further and can be had."""
        ...


@dataclass(frozen=True)
class HostBudget:
    """Main memory."""

    memory: HostMemory

    @property
    def available(self) -> int:
        return self.memory.available

    @property
    def usable(self) -> int:
        return int(self.memory.available * LIMIT_SHARE)

    @property
    def pool(self) -> int:
        return self.usable if self.memory.limited else int(self.memory.available * FREE_SHARE)

    @property
    def words(self) -> str:
        whose = "the container's limit leaves" if self.memory.limited else "are free"
        return f"{LIMIT_SHARE:.0%} of the {mib(self.available)} that {whose}"

    def more(self, missing: int, full: int = 0, purpose: str = "") -> str:
        limited = self.memory.limited
        now = self.memory.limit if limited else self.memory.available
        amount, enough = (mib(now + int(lacking / LIMIT_SHARE) + MIB) for lacking in (missing, full))
        verb = "raise the limit" if limited else "free memory"
        return _as_far_as(verb, amount, enough, purpose if full > missing else "")


@dataclass(frozen=True)
class GPUBudget:
    """A GPU's memory: `free` of `total` bytes, of which a plan may use the share `utilization` together with what is in use."""

    free: int
    total: int
    utilization: float

    @property
    def available(self) -> int:
        return max(int(self.total * self.utilization) - self._used, 0)

    @property
    def usable(self) -> int:
        return self.available

    @property
    def pool(self) -> int:
        return self.available

    @property
    def words(self) -> str:
        return (
            f"the {mib(self.available)} that --gpu-memory-utilization {self.utilization:g} leaves of the GPU's "
            f"{mib(self.total)}, {mib(self._used)} of which are in use"
        )

    def more(self, missing: int, full: int = 0, purpose: str = "") -> str:
        share, enough = (
            math.ceil((self.available + lacking + self._used) / self.total * 100) / 100 for lacking in (missing, full)
        )
        if share <= 1.0:
            purpose = purpose if share < enough <= 1.0 else ""
            return _as_far_as("raise --gpu-memory-utilization", f"{share:g}", f"{enough:g}", purpose)
        if self.available + missing <= self.total:
            return "free memory of the GPU, and raise --gpu-memory-utilization"
        return ""

    @property
    def _used(self) -> int:
        return self.total - self.free


def _as_far_as(verb: str, amount: str, enough: str, purpose: str) -> str:
    return f"{verb} to {amount}" + (f" (to {enough} for {purpose})" if purpose else "")


def at_most(most: int, *, least: int) -> str:
    """A flag's value of `most` bytes, in whole MiB, or in KiB or bytes where rounding down would give less than `least`."""
    for unit, name in _UNITS:
        if most // unit * unit >= least:
            return f"{most // unit}{name}"
    return str(most)


def at_least(least: int, *, most: int) -> str:
    """A flag's value of `least` bytes, in whole MiB, or in KiB or bytes where rounding up would give more than `most`."""
    for unit, name in _UNITS:
        if -(-least // unit) * unit <= most:
            return f"{-(-least // unit)}{name}"
    return str(least)


def mib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / MIB:,.0f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:,.1f} KiB"
