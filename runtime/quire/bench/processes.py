"""Reads /proc: the processes below one, the memory they hold, and what else used the CPUs. Empty answers where there is no /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for one, fields in _stats().items():
        children.setdefault(int(fields[1]), []).append(one)
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        found.append(one)
        todo += children.get(one, [])
    return found


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process and its descendants: a page that n processes share counts 1/n for each."""
    return sum(_pss(one) for one in tree(pid))


def _pss(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:  # it ended
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, those of its threads included and of its descendants not; 0 where it is gone or there is no /proc."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Ticks:
    """Clock ticks since boot: of the machine, of it stolen by the hypervisor and busy, and busy in some processes."""

    total: int
    stolen: int
    busy: int
    own: int


def ticks(pid: int) -> Ticks | None:
    """Now; own: of pid and its descendants, ended ones that were waited for included."""
    try:
        fields = [int(one) for one in (PROC / "stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    idle, stolen = fields[3] + fields[4], fields[7]
    stats = _stats()
    own = sum(sum(int(one) for one in stats[pid][11:15]) for pid in tree(pid) if pid in stats)
    return Ticks(sum(fields), stolen, sum(fields) - idle - stolen, own)


class Noise:
    """A block during which other processes and the hypervisor are watched; shares of all CPU time, NaN where unknown."""

    def __init__(self) -> None:
        self.foreign = self.stolen = float("nan")

    def __enter__(self) -> Self:
        self._before = ticks(os.getpid())
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        after = ticks(os.getpid())
        if self._before is not None and after is not None:
            total = max(after.total - self._before.total, 1)
            own = after.own - self._before.own
            self.foreign = max(after.busy - self._before.busy - own, 0) / total
            self.stolen = (after.stolen - self._before.stolen) / total


def _stats() -> dict[int, list[str]]:
    """The fields of /proc/PID/stat behind the name (which may hold anything) of every process."""
    found: dict[int, list[str]] = {}
    for folder in PROC.glob("[0-9]*"):
        try:
            found[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
    return found
