"""Machines: a process tree in its own pid, mount, net, uts and ipc namespace, and daemons inside it.

The pid namespace is the point: killing its first process ends every daemon, shim and container, and with the last process go the
mounts and the network. Powering a node off is one signal, and a teardown cannot leak.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster import cgroups, wait
from cluster.errors import CommandError
from cluster.layout import Layout
from cluster.processes import Process, children, detach, identify
from cluster.run import log_tail

BINDS = {
    "kubelet": "/var/lib/kubelet",
    "varlibcni": "/var/lib/cni",
    "varlogpods": "/var/log/pods",
    "varlogcontainers": "/var/log/containers",
}
"""Folders of a machine over paths that are compiled into kubelet and the CNI plugins; shared, nodes would hand out each other's pod addresses."""

SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/bridge/bridge-nf-call-iptables": "1",
}

_INIT = Path(__file__).resolve().parent / "machine_init.py"
_ATTACH = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 > "$1"; shift; n=$((n - 1)); done; exec "$@"'


def missing_mount_points() -> list[str]:
    """Mount points that the host lacks: to be recorded, then made."""
    return [target for target in BINDS.values() if not Path(target).exists()]


def boot(layout: Layout, name: str, pause: Path, record: Callable[[Process], None]) -> Process:
    """Start the machine's first process and wait until its namespaces are ready. `record` is called before it may act."""
    cgroups.create(layout.cgroup, name)
    folder = layout.machine(name)
    ready = folder / "ready"
    ready.unlink(missing_ok=True)
    for source in BINDS:
        (folder / source).mkdir(parents=True, exist_ok=True)
    log = layout.log(name, "init")
    spec = {
        "name": name,
        "binds": [[str(folder / source), target] for source, target in BINDS.items()],
        "sysctls": SYSCTLS,
        "keep": str(layout.base),
        "ready": str(ready),
        "pause": str(pause),
    }
    read_end, write_end = os.pipe()
    try:
        namespaces = ("--pid", "--fork", "--kill-child", "--mount", "--net", "--uts", "--ipc")
        command = (sys.executable, "-I", "-S", str(_INIT), json.dumps(spec), str(read_end))
        outer = detach(["unshare", *namespaces, *command], log, pass_fds=(read_end,))
        init = _only_child(outer, f"{name}: its first process", log)
        record(init)
        os.write(write_end, b"1")
    finally:
        os.close(read_end)
        os.close(write_end)

    def look() -> str | None:
        if ready.exists():
            return None
        if identify(init.pid) != init:
            raise CommandError(f"machine {name} ended while it started; its log {log} ends:\n{log_tail(log)}")
        return "its namespaces are not ready"

    wait.until(f"{name}: start of the machine", look, deadline_s=30, interval_s=0.01, log=log)
    return init


def enter(init: Process, argv: Sequence[str]) -> list[str]:
    """The command line that runs a command inside the machine."""
    return ["nsenter", "-t", str(init.pid), "-m", "-u", "-i", "-n", "-p", "--wd=/", "--", *argv]


def start(layout: Layout, name: str, init: Process, daemon: str, argv: Sequence[str]) -> Process:
    """Start a daemon inside the machine, in its cgroup; returns the daemon itself as the host sees it."""
    files = [str(file) for file in cgroups.attach_files(layout.cgroup, name)]
    log = layout.log(name, daemon)
    outer = detach(enter(init, ["sh", "-c", _ATTACH, "sh", str(len(files)), *files, *argv]), log)
    return _only_child(outer, f"{name}: {daemon}", log)


def _only_child(outer: Process, what: str, log: Path) -> Process:
    """The process that `unshare` or `nsenter` forked."""
    found: list[Process] = []

    def look() -> str | None:
        for pid in children(outer.pid):
            child = identify(pid)
            if child:
                found.append(child)
                return None
        if identify(outer.pid) != outer:
            raise CommandError(f"{what} ended at once; its log {log} ends:\n{log_tail(log)}")
        return "it has no process"

    wait.until(f"{what}: start", look, deadline_s=20, interval_s=0.005, log=log)
    return found[0]
