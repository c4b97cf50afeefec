"""What of a cluster exists on this machine right now. After `down` it must be nothing; `down` checks that itself.

Finds things by what they are (cgroup, link and mount names that only the harness uses), not by what was recorded, so it
also sees what a record missed.
"""

import os
import re
from pathlib import Path

from cluster import cgroups, machine, network
from cluster.layout import Layout

_MACHINE = re.compile(r"cp|node-\d+")


def residue(layout: Layout) -> dict[str, list[str]]:
    """Kind -> names of everything that exists: processes, cgroups, links, routes, mounts. Empty when there is no cluster."""
    found = {
        "processes": [f"{pid} ({_name(pid)})" for pid in sorted(cgroups.processes(layout.cgroup) | _inside(layout))],
        "cgroups": [str(folder) for folder in cgroups.folders(layout.cgroup)],
        "links": network.owned_links(layout.network, network.host_links()),
        "routes": network.owned_routes(layout.network, network.host_routes()),
        "mounts": mounts_below(layout.base),
    }
    return {kind: names for kind, names in found.items() if names}


def mounts_below(folder: Path) -> list[str]:
    """Mount points of this mount namespace below a folder; the folder itself may be one."""
    points = [line.split()[4] for line in cgroups.MOUNTINFO.read_text().splitlines()]
    return sorted(point for point in points if folder in Path(point).parents)


def mounted_somewhere(point: str) -> bool:
    """Whether any mount namespace has something mounted exactly there; removing the folder would unmount it in all of them."""
    return any(
        point in {line.split()[4] for line in mountinfo.splitlines()} for mountinfo, _ in _mount_namespaces().values()
    )


def _mount_namespaces() -> dict[int, tuple[str, list[int]]]:
    """Every mount namespace of the system: its mountinfo, and the processes in it."""
    found: dict[int, tuple[str, list[int]]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            namespace = os.stat(entry / "ns/mnt").st_ino
            if namespace not in found:
                found[namespace] = ((entry / "mountinfo").read_text(), [])
        except OSError:
            continue  # it ended while we looked
        found[namespace][1].append(int(entry.name))
    return found


def _inside(layout: Layout) -> set[int]:
    """Processes in a mount namespace of one of the cluster's machines."""
    return {
        pid for mountinfo, pids in _mount_namespaces().values() if _of_machine(mountinfo, layout.work) for pid in pids
    }


def _of_machine(mountinfo: str, work: Path) -> bool:
    """Whether a machine's kubelet folder is mounted; mountinfo names it relative to its own file system."""
    for line in mountinfo.splitlines():
        root, point = line.split()[3:5]
        if point == machine.BINDS["kubelet"]:
            name = Path(root).parent.name
            return bool(_MACHINE.fullmatch(name)) and str(work / name / "kubelet").endswith(root)
    return False


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return "just ended"
