"""The cluster's cgroups: one folder below each hierarchy's root, one per machine, one `sys` leaf for the machine's daemons.

kubelet gets the machine's folder as its root and puts pods beside `sys`. Version 1 hierarchies are what this was written
and tested on; the unified hierarchy (version 2) follows the kernel's documentation.
"""

import contextlib
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from cluster import wait
from cluster.errors import PrerequisiteError

MOUNTINFO = Path("/proc/self/mountinfo")
V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids", "hugetlb")
V2_NEEDED = {"cpuset", "cpu", "memory", "pids"}
MOVE_ROUNDS = 5
"""Processes fork while they are moved."""


@dataclass(frozen=True)
class Hierarchies:
    """Where cgroup file systems are mounted; symbolic links and plain folders beside them are not listed."""

    v1: tuple[Path, ...]
    v2: Path | None
    """The unified hierarchy when it is the only one: a hybrid system's has no controllers."""
    idle_v2: Path | None = None
    """The unified hierarchy of a hybrid system; runtimes may still make folders in it."""

    @property
    def all(self) -> tuple[Path, ...]:
        return tuple(path for path in (*self.v1, self.v2, self.idle_v2) if path)


def parse_mounts(mountinfo: str) -> Hierarchies:
    """Find the hierarchies in the text of a mountinfo file."""
    v1: list[Path] = []
    v2: list[Path] = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, path = right.split()[0], Path(left.split()[4])
        if kind == "cgroup" and path not in v1:
            v1.append(path)
        elif kind == "cgroup2":
            v2.append(path)
    unified = v2[0] if v2 else None
    return Hierarchies(tuple(v1), None, unified) if v1 else Hierarchies((), unified)


def hierarchies() -> Hierarchies:
    found = parse_mounts(MOUNTINFO.read_text())
    if not found.v1 and found.v2 is None:
        raise PrerequisiteError("no cgroup file system is mounted; mount one at /sys/fs/cgroup")
    return found


def create(root: str, machine: str) -> None:
    """Make `root/machine/sys` everywhere, ready to take processes. Nothing happens where it is there already."""
    found = hierarchies()
    for hierarchy in found.v1:
        for relative in (root, f"{root}/{machine}", f"{root}/{machine}/sys"):
            folder = hierarchy / relative
            folder.mkdir(exist_ok=True)
            for name in ("cpuset.cpus", "cpuset.mems"):  # children start empty, and then nothing can be attached
                file = folder / name
                if file.exists() and not file.read_text().strip():
                    file.write_text((folder.parent / name).read_text())
    if found.v2:
        _create_v2(found.v2, root, machine)


def _create_v2(hierarchy: Path, root: str, machine: str) -> None:
    offered = set((hierarchy / "cgroup.controllers").read_text().split())
    if absent := V2_NEEDED - offered:
        raise PrerequisiteError(
            f"the cgroup controllers {', '.join(sorted(absent))} are not offered at {hierarchy}; enable them for this system"
        )
    enable = " ".join(f"+{name}" for name in V2_CONTROLLERS if name in offered)
    for folder in (hierarchy, hierarchy / root, hierarchy / root / machine):
        folder.mkdir(exist_ok=True)
        _hand_down(folder, enable)
    (hierarchy / root / machine / "sys").mkdir(exist_ok=True)


def _hand_down(folder: Path, enable: str) -> None:
    """Controllers reach a child only when every folder above hands them down; such a folder may hold no processes itself.

    The topmost folder holds them where it is a container's own root: they move to the leaf `init` beside the cluster, and stay.
    """
    control = folder / "cgroup.subtree_control"
    for _ in range(MOVE_ROUNDS):
        try:
            control.write_text(enable)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise PrerequisiteError(
                    f"cgroup controllers cannot be handed down in {folder} ({error.strerror}); run where /sys/fs/cgroup "
                    "is writable, such as in a privileged container"
                ) from error
        leaf = folder / "init"
        leaf.mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it ended
                (leaf / "cgroup.procs").write_text(pid)
    raise PrerequisiteError(
        f"cgroup controllers cannot be handed down in {folder}: it holds processes that cannot be moved to {folder / 'init'}; "
        "start the container with a cgroup namespace of its own (docker run --cgroupns=private)"
    )


def attach_files(root: str, machine: str) -> tuple[Path, ...]:
    """Files to which a daemon writes 0 to join its machine."""
    found = hierarchies()
    return tuple(
        hierarchy / root / machine / "sys" / "cgroup.procs"
        for hierarchy in (*found.v1, *([found.v2] if found.v2 else []))
    )


def folders(root: str) -> tuple[Path, ...]:
    """The cluster's folder in every hierarchy where it exists."""
    return tuple(hierarchy / root for hierarchy in hierarchies().all if (hierarchy / root).is_dir())


def processes(root: str) -> set[int]:
    """Every process in the cluster's cgroups."""
    pids: set[int] = set()
    for folder in folders(root):
        for path, _, _ in os.walk(folder):
            with contextlib.suppress(OSError):  # the group goes while we look
                pids |= {int(word) for word in Path(path, "cgroup.procs").read_text().split()}
    return pids


def memory_bytes(root: str, machine: str) -> int | None:
    """Anonymous memory of a machine's processes and pods; None where the kernel does not count it."""
    found = hierarchies()
    for hierarchy in found.v1:
        stat = hierarchy / root / machine / "memory.stat"
        if stat.exists():
            return _stat_field(stat, "total_rss")
    if found.v2 and (found.v2 / root / machine / "memory.stat").exists():
        return _stat_field(found.v2 / root / machine / "memory.stat", "anon")
    return None


def _stat_field(path: Path, name: str) -> int | None:
    return next((int(value) for key, value in map(str.split, path.read_text().splitlines()) if key == name), None)


def remove(root: str) -> None:
    """Remove the cluster's folders bottom-up. The kernel lets go of a dead process's group a moment after its end."""

    def look() -> str | None:
        for folder in folders(root):
            for path, _, _ in os.walk(folder, topdown=False):
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    return f"{path}: {error.strerror}"
        return None

    wait.until(f"removing the cgroups {root}", look, deadline_s=10)
