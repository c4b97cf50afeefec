"""First process of a machine: prepares the namespaces it was started in, then becomes the pause program. Runs as a script.

Called by `machine.boot` as `python -I -S machine_init.py SPEC GO_FD` inside new pid, mount, net, uts and ipc namespaces.
It waits for one byte on GO_FD before doing anything: the caller sends it once this process is on record, and if the
caller dies first, so does this machine. Standard library only.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

CONTAINER_FILE_SYSTEMS = ("overlay", "aufs", "fuse.fuse-overlayfs", "nsfs")


def main() -> None:
    spec = json.loads(sys.argv[1])
    with open(int(sys.argv[2]), "rb", buffering=0) as go:
        if go.read(1) != b"1":
            sys.exit("the harness ended before this machine was recorded")
    mount("--make-rprivate", "/")
    for point in foreign_mounts(Path("/proc/self/mountinfo").read_text(), spec["keep"]):
        subprocess.run(["umount", "--lazy", point], check=True)
    mount("--make-rshared", "/")  # kubelet hands mounts on to containers
    for source, target in spec["binds"]:
        mount("--bind", source, target)
    mount("-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run")
    mount("-t", "proc", "proc", "/proc")
    mount("--make-rshared", "/")
    # /sys stays the host's: mounting it anew would hide /sys/fs/cgroup.
    socket.sethostname(spec["name"])
    for name, value in spec["sysctls"].items():
        Path("/proc/sys", name).write_text(value)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path(spec["ready"]).touch()
    os.execv(spec["pause"], ["pause"])


def foreign_mounts(mountinfo: str, keep: str) -> list[str]:
    """Mounts of containers and image builds that happen to be on the host: holding copies of them would keep their files in use for as long as this machine lives. Innermost first."""
    points = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4]
        inside = keep == point or keep.startswith(point.rstrip("/") + "/")
        if right.split()[0] in CONTAINER_FILE_SYSTEMS and not inside:
            points.append(point)
    return points[::-1]


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    main()
