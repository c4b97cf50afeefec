"""What this process may use of the machine: CPUs and memory, by affinity and by control groups (versions 1 and 2).

In a container the machine's own figures are wrong: a pod with a limit of 2 GiB on a node of 512 must plan with 2.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60


@dataclass(frozen=True)
class HostMemory:
    """available: bytes that can still be taken. limited: a control group sets the bound, not the machine."""

    available: int
    limited: bool
    limit: int


def cpu_threads(root: Path = Path("/")) -> int:
    """Threads worth running: CPUs this process may run on, at most the quota (rounded up) of its control groups."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in _groups(root, "cpu") if (quota := _cpu_quota(folder)) is not None]
    return max(1, min([cpus, *(math.ceil(quota) for quota in quotas)]))


def memory(root: Path = Path("/")) -> HostMemory:
    """Memory that can be taken: of the machine, and of every control group from this process up to the root."""
    info = _meminfo(root / "proc/meminfo")
    available, limit, limited = info.get("MemAvailable", info.get("MemFree", 0)), info.get("MemTotal", 0), False
    for folder in _groups(root, "memory"):
        bound = _number(folder / "memory.max") or _number(folder / "memory.limit_in_bytes")
        if bound is None or bound >= _UNLIMITED or bound >= limit:
            continue
        used = _number(folder / "memory.current") or _number(folder / "memory.usage_in_bytes") or 0
        limit, limited = bound, True
        available = min(available, max(bound - used + _reclaimable(folder), 0))
    return HostMemory(available, limited, limit)


def trim() -> None:
    """Give freed memory back to the system that the C library keeps for later, where that is glibc. Reading SmolLM2's weights leaves
    some 100 MiB of it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def return_long_blocks() -> None:
    """From now on blocks of 1 MiB and more go back to the system when they are freed, where the C library is glibc. It learns to keep
    them otherwise, and all that lies between them: of 430 MiB after bodies of 16 MB, six at once, 160 are left."""
    m_trim_threshold, m_mmap_threshold = -1, -3
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(m_mmap_threshold, 1 << 20)
        libc.mallopt(m_trim_threshold, 4 << 20)


def _groups(root: Path, controller: str) -> list[Path]:
    """This process's control group folders for a controller, itself and its parents; unified and legacy hierarchies."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / controllers
            base = base if base.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        # inside a container the path may be the host's, while the container's own group is mounted at the base
        folder = base / path.lstrip("/")
        folder = folder if folder.is_dir() else base
        folders += [folder, *(parent for parent in folder.parents if parent == base or base in parent.parents)]
    return folders


def _cpu_quota(folder: Path) -> float | None:
    try:
        if (unified := folder / "cpu.max").is_file():
            quota, period = unified.read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    except (OSError, ValueError):
        return None
    return quota_us / period_us if quota_us is not None and quota_us > 0 and period_us else None


def _reclaimable(folder: Path) -> int:
    """Page cache that counts as used but makes room on demand: what was not read lately, and of the rest what no process maps. Weights that
    an engine mapped which has ended are of the latter: the next one maps the same pages, and they must not count twice."""
    try:
        pairs = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        inactive, active = (
            int(pairs.get(name, pairs.get(f"total_{name}", 0))) for name in ("inactive_file", "active_file")
        )
        names = ("file_mapped", "mapped_file", "total_mapped_file")  # of version 2, and of 1
        mapped = next((int(pairs[name]) for name in names if name in pairs), active)
        return inactive + max(active - mapped, 0)
    except (OSError, ValueError):
        return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _meminfo(path: Path) -> dict[str, int]:
    values: dict[str, int] = {}
    try:
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(":")
            if rest.split():
                values[name] = int(rest.split()[0]) * 1024
    except (OSError, ValueError):
        return values
    return values
