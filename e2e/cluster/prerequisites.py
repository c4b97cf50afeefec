"""Debian and Ubuntu packages of the cluster harness and of the image builds: the one list, and `ensure`, which installs what is missing.

A package counts as present when its program is, whoever installed it: Docker's containerd.io must not be replaced by
Debian's containerd. Services that an installation starts are stopped again; services that ran before are left alone.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from cluster.errors import CommandError, PrerequisiteError
from cluster.progress import Progress
from cluster.run import run

CLUSTER = (
    "etcd-server",
    "containerd",
    "runc",
    "containernetworking-plugins",
    "iptables",
    "conntrack",
    "ipset",
    "socat",
    "iproute2",
    "util-linux",
    "kmod",
    "procps",
    "gcc",
    "libc6-dev",
)
IMAGES = ("buildah", "debootstrap")

CNI_DIRS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
"""Debian's place and everybody else's."""

DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
"""What debootstrap checks Debian's signatures with; Ubuntu has it in a package of its own."""

PROVIDES: dict[str, tuple[str, ...]] = {
    "etcd-server": ("etcd",),
    "containerd": ("containerd", "ctr", "containerd-shim-runc-v2"),
    "containernetworking-plugins": (),
    "iproute2": ("ip",),
    "util-linux": ("unshare", "nsenter", "setpriv"),
    "kmod": ("modprobe",),
    "procps": ("sysctl",),
    "libc6-dev": (),
    "prometheus": ("prometheus", "promtool"),
}
"""Programs by package, where they are not simply called like it."""

SERVICES = {"etcd-server": "etcd", "containerd": "containerd", "prometheus": "prometheus"}

_APT_ENV = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
_APT = ("apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Acquire::Retries=3")


def cni_dir() -> Path | None:
    """Where the CNI plugins lie, or None."""
    return next((folder for folder in CNI_DIRS if (folder / "bridge").exists()), None)


def present(package: str) -> bool:
    """Whether what the package is needed for is on this machine."""
    if package == "containernetworking-plugins":
        return cni_dir() is not None
    if package == "debian-archive-keyring":
        return DEBIAN_KEYRING.exists()
    if package == "libc6-dev":
        return any(Path("/usr/lib").glob("*/libc.a")) or Path("/usr/lib/libc.a").exists()
    return all(shutil.which(program, path=_search_path()) for program in PROVIDES.get(package, (package,)))


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def missing(packages: Iterable[str]) -> tuple[str, ...]:
    """Those packages whose programs are not here."""
    return tuple(package for package in packages if not present(package))


def ensure(packages: Iterable[str], progress: Progress) -> tuple[str, ...]:
    """Install what is missing and return it. Raises PrerequisiteError where that cannot be done."""
    absent = missing(packages)
    if not absent:
        return ()
    words = " ".join(absent)
    if shutil.which("apt-get") is None:
        raise PrerequisiteError(
            f"missing on this machine: {words}; it has no apt-get, so install the equivalents by hand"
        )
    if os.geteuid() != 0:
        raise PrerequisiteError(
            f"missing on this machine: {words}; run as root, or `sudo apt-get install {words}` first"
        )
    running = {service for service in SERVICES.values() if _service_runs(service)}
    updated = False
    if not all(_has_candidate(package) for package in absent):
        _update(progress)
        updated = True
    try:
        _install(absent, progress)
    except CommandError:
        if updated:
            raise
        _update(progress)  # the lists were there but old: the versions they name are gone
        _install(absent, progress)
    for package in absent:
        service = SERVICES.get(package)
        if service and service not in running and _service_runs(service):
            progress.say(f"stop the {service} service that its package started")
            _stop_service(service)
    still = missing(absent)
    if still:
        raise PrerequisiteError(f"apt-get installed {words}, but the programs of {' '.join(still)} are still not found")
    return absent


def _has_candidate(package: str) -> bool:
    policy = run(["apt-cache", "policy", package], env={**os.environ, **_APT_ENV})
    return "Candidate:" in policy and "Candidate: (none)" not in policy


def _update(progress: Progress) -> None:
    with progress.step("apt-get update"):
        try:
            run([*_APT, "update"], deadline_s=600, env={**os.environ, **_APT_ENV})
        except CommandError as error:
            # One unreachable third-party source fails the whole update although the distribution's own lists are fresh;
            # the installation that follows decides whether that matters.
            progress.say(f"apt-get update was not complete, going on with the lists there are:\n{error}")


def _install(packages: tuple[str, ...], progress: Progress) -> None:
    with progress.step(f"apt-get install {' '.join(packages)}"):
        run(
            [*_APT, "install", "--no-install-recommends", *packages],
            deadline_s=1200,
            env={**os.environ, **_APT_ENV},
        )


def _systemd() -> bool:
    return Path("/run/systemd/system").is_dir()


def _service_runs(service: str) -> bool:
    command = ["systemctl", "is-active", "--quiet", service] if _systemd() else ["service", service, "status"]
    if shutil.which(command[0]) is None:
        return False
    try:
        run(command)
    except CommandError:
        return False
    return True


def _stop_service(service: str) -> None:
    run(["systemctl", "disable", "--now", service] if _systemd() else ["service", service, "stop"])
