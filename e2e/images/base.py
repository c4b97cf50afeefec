"""The base image where no registry of images can be reached: a small Debian by debootstrap, made once and kept.

It carries no package sources: which mirror to use is the host's business, and builds get it as a secret.
Its identity is the recipe (suite, dpkg rules, RECIPE), never the date; delete the tarball to have a newer one.
"""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import prerequisites
from cluster.errors import PrerequisiteError
from cluster.progress import Progress
from cluster.run import run
from cluster.stream import stream
from images.host import HostSettings, debian_sources, read_host
from images.identity import hash_of
from images.layout import Layout

REGISTRY_BASE = "docker.io/library/debian:bookworm-slim"
REPOSITORY = "localhost/quire/base"
SUITE = "bookworm"
RECIPE = "1"
KEYRING = prerequisites.DEBIAN_KEYRING
DEBOOTSTRAP_DEADLINE_S = 1200.0
MIRROR_VARIABLE = "QUIRE_DEBIAN_MIRROR"

# What a container never reads. The copyright files stay: licences ask for them.
_DPKG_RULES = """\
force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/lintian/*
"""
_EMPTIED = (
    "var/lib/apt/lists",
    "var/cache/apt",
    "var/cache/debconf",
    "var/log",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
    "tmp",
    "run",
    "proc",
    "sys",
    "dev",
)
_REMOVED = (
    "etc/resolv.conf",
    "etc/hostname",
    "etc/machine-id",
    "etc/apt/sources.list",
    "var/cache/ldconfig/aux-cache",
    "debootstrap",
)


def identity() -> str:
    """Twelve hex digits of the recipe."""
    return hash_of((SUITE, RECIPE, _DPKG_RULES, platform.machine()))


def reference() -> str:
    """The base as a local image."""
    return f"{REPOSITORY}:{identity()}"


@dataclass(frozen=True)
class Base:
    """The tarball of the root file system, and the lines for apt that builds on it need."""

    tarball: Path
    sources: str


def ensure_base(layout: Layout, pip: Mapping[str, str], progress: Progress) -> Base:
    """Make the base unless it is there. The caller holds the lock."""
    tarball = layout.root / f"base-{identity()}.tar"
    note = tarball.with_suffix(".json")
    if not (tarball.is_file() and note.is_file()):
        _make(layout, tarball, note, pip, progress)
    mirror = str(json.loads(note.read_text())["mirror"])
    return Base(tarball, "\n".join(debian_sources(SUITE) or _sources_of(mirror)) + "\n")


def _sources_of(mirror: str) -> tuple[str, ...]:
    """Release, updates and, where the mirror has Debian's usual layout, security."""
    plain = mirror.rstrip("/")
    lines = [f"deb {plain} {SUITE} main", f"deb {plain} {SUITE}-updates main"]
    if plain.endswith("/debian"):
        lines.append(f"deb {plain}-security {SUITE}-security main")
    return tuple(lines)


def _make(layout: Layout, tarball: Path, note: Path, pip: Mapping[str, str], progress: Progress) -> None:
    if os.geteuid() != 0:
        raise PrerequisiteError(
            "debootstrap needs root to make the base image; run as root, or use docker or podman with a registry"
        )
    prerequisites.ensure(["debootstrap", "debian-archive-keyring", "util-linux"], progress)
    root = layout.scratch / "base"
    if root.exists():  # left by a run that was killed; the lock is the caller's
        shutil.rmtree(root)
    root.mkdir(parents=True)
    own = debian_sources(SUITE)
    mirror = os.environ.get(MIRROR_VARIABLE) or (own[0].split()[1] if own else "")
    # In a mount namespace of its own, so that what it mounts on the new root is gone with it, however it ends.
    # Without a mirror debootstrap takes Debian's own and writes it to the new system's sources.list.
    command = ["debootstrap", "--variant=minbase", f"--keyring={KEYRING}", SUITE, str(root)]
    stream(
        ["unshare", "--mount", *command, *([mirror] if mirror else [])],
        title=f"debootstrap {SUITE} (once)",
        log=layout.log("base"),
        deadline_s=DEBOOTSTRAP_DEADLINE_S,
        progress=progress,
    )
    used = mirror or (root / "etc/apt/sources.list").read_text().split()[1]
    _upgrade(layout, root, read_host(pip, "\n".join(own or _sources_of(used)) + "\n"), progress)
    _trim(root)
    fresh = layout.scratch / tarball.name
    with progress.step(f"write {tarball.name}"):
        run(
            [
                "tar",
                "--create",
                "--file",
                fresh,
                "--directory",
                root,
                "--numeric-owner",
                "--sort=name",
                "--xattrs",
                ".",
            ],
            deadline_s=300,
        )
    shutil.rmtree(root)
    note.write_text(json.dumps({"suite": SUITE, "mirror": used}) + "\n")
    fresh.rename(tarball)


def _upgrade(layout: Layout, root: Path, host: HostSettings, progress: Progress) -> None:
    """Security updates, which debootstrap does not know. The secrets lie on the new root only while apt runs."""
    (root / "etc/dpkg/dpkg.cfg.d/quire").write_text(_DPKG_RULES)
    secrets = root / "run/secrets"
    secrets.mkdir(mode=0o700)
    for name, content in host.secrets.items():
        (secrets / name).write_bytes(content)
    environment = _chroot_environment()
    try:
        for step in (["update"], ["upgrade", "-y", "--no-install-recommends"]):
            stream(
                ["chroot", str(root), "apt-get", "-q", *step],
                title=f"security updates of the base: apt-get {step[0]}",
                log=layout.log("base-updates"),
                deadline_s=600,
                progress=progress,
                env=environment,
            )
    finally:
        shutil.rmtree(secrets)


def _chroot_environment() -> Mapping[str, str]:
    return {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "APT_CONFIG": "/run/secrets/apt_conf",
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
    }


def _trim(root: Path) -> None:
    for name in _EMPTIED:
        for path in (root / name).iterdir() if (root / name).is_dir() else ():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in _REMOVED:
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()
