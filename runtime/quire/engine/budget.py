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

    def more(self, missing: int) -> str:
        """What to do so that `missing` bytes more are usable; empty where there are none to be had."""
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

    def more(self, missing: int) -> str:
        extra = int(missing / LIMIT_SHARE) + MIB
        if self.memory.limited:
            return f"raise the limit to {mib(self.memory.limit + extra)}"
        return f"free memory to {mib(self.memory.available + extra)}"


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

    def more(self, missing: int) -> str:
        needed = self.available + missing
        share = math.ceil((needed + self._used) / self.total * 100) / 100
        if share <= 1.0:
            return f"raise --gpu-memory-utilization to {share:g}"
        if needed <= self.total:
            return "free memory of the GPU, and raise --gpu-memory-utilization"
        return ""

    @property
    def _used(self) -> int:
        return self.total - self.free


def mib(num_bytes: int) -> str:
    """For people."""
    return f"{num_bytes / MIB:,.0f} MiB" if num_bytes >= MIB else f"{num_bytes / 1024:,.1f} KiB"
