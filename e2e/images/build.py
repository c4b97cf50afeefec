"""Build what is missing: tag by content, base, secrets, engine, archive. An archive that exists for the tag means no work at all."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import prerequisites
from cluster.caches import exclusive
from cluster.errors import HarnessError
from cluster.progress import Progress
from images import base as debian
from images.contents import read
from images.context import snapshot
from images.engines import Buildah, BuildRequest, Engine, choose
from images.host import HostSettings, host_pip, read_host
from images.identity import content_tag
from images.layout import REPOSITORY, Layout, full_ref, short_ref
from images.prune import prune
from images.wheels import parse_find_links, stage


@dataclass(frozen=True)
class Built:
    """One image: `ref` as pods name it, `archive` as the cluster loads it."""

    name: str
    ref: str
    archive: Path
    built_now: bool


@dataclass(frozen=True)
class Wanted:
    """The choices of the command line; None means: whatever works here."""

    engine: str | None = None
    base: str | None = None
    fresh: bool = False

    @classmethod
    def of_environment(cls) -> "Wanted":
        """What QUIRE_IMAGE_ENGINE and QUIRE_IMAGE_BASE choose; the command line's defaults."""
        return cls(os.environ.get("QUIRE_IMAGE_ENGINE") or None, os.environ.get("QUIRE_IMAGE_BASE") or None)


def build(names: Sequence[str], wanted: Wanted, progress: Progress) -> list[Built]:
    """Build the named images unless their archives exist, in the order given."""
    layout = Layout.of_user()
    layout.records.mkdir(parents=True, exist_ok=True)
    engine = choose(layout, wanted.engine, lambda: _install(progress))
    builder = Builder(layout, engine, *_base_at_hand(engine, wanted), host_pip(), wanted.fresh, progress)
    if known := builder.reuse_all(names):
        return known
    if _pull_base(engine, wanted, progress):
        base_ref, base_identity = _base_at_hand(engine, wanted)
        builder = replace(builder, base_ref=base_ref, base_identity=base_identity)
        if known := builder.reuse_all(names):
            return known
    with exclusive(layout.lock, progress, "the image builds"):
        try:
            builder.clear()
            built = [builder.build(name) for name in names]
            _tidy(layout, engine, progress)
            return built
        finally:
            builder.clear()


def dockerfile(name: str) -> Path:
    """The image's recipe in the repository."""
    return REPOSITORY / f"Dockerfile.{name}"


def version() -> str:
    """The project's version: the three distributions share it."""
    return str(tomllib.loads((REPOSITORY / "runtime/pyproject.toml").read_text())["project"]["version"])


def revision() -> str:
    """The commit, with `-dirty` where files differ from it; `unknown` outside a git checkout."""
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}-dirty" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*args: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *args]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout.strip()


def _install(progress: Progress) -> None:
    prerequisites.ensure(prerequisites.IMAGES, progress)


def _tidy(layout: Layout, engine: Engine, progress: Progress) -> None:
    """Prune as far as it goes: what is built is built, also where an old image is in use and cannot be removed."""
    try:
        prune(layout, engine)
    except (HarnessError, OSError, ValueError) as error:
        progress.say(f"old images could not be pruned:\n{error}")


def _registry_base(engine: Engine, wanted: Wanted) -> str | None:
    """The image of a registry to build on; None where it is to be made by debootstrap."""
    if wanted.base is None:
        return debian.REGISTRY_BASE if engine.pulls_base else None
    return None if wanted.base == "debootstrap" else wanted.base


def _base_at_hand(engine: Engine, wanted: Wanted) -> tuple[str, str]:
    """Reference and identity of the base to build on with what is on this machine. An explicit one never falls back."""
    ref = _registry_base(engine, wanted)
    known = engine.image_id(ref) if ref is not None else None
    if ref is not None and (known is not None or wanted.base is not None):
        return ref, known or ref
    return debian.reference(), debian.identity()


def _pull_base(engine: Engine, wanted: Wanted, progress: Progress) -> bool:
    """Fetch the base that is not on this machine; whether that was done. A failure counts where the base is an explicit choice."""
    ref = _registry_base(engine, wanted)
    if ref is None or engine.image_id(ref) is not None:
        return False
    try:
        with progress.step(f"pull {ref}"):
            engine.pull(ref)
    except HarnessError as error:
        if wanted.base is not None:
            raise
        progress.say(f"no base image from a registry, so one is made by debootstrap:\n{error}")
        return False
    return True


@dataclass(frozen=True)
class Builder:
    """What all builds of one run share."""

    layout: Layout
    engine: Engine
    base_ref: str
    base_identity: str
    pip: Mapping[str, str]
    fresh: bool
    progress: Progress

    def tag(self, recipe: Path) -> str:
        """The tag that the tree around this Dockerfile has now."""
        wheels = parse_find_links(self.pip.get("find-links", "")).identity
        return content_tag(recipe, base_identity=self.base_identity, wheels_identity=wheels)

    def reuse(self, name: str, recipe: Path) -> Built | None:
        """The image that is there already for this content, if it may be used."""
        tag = self.tag(recipe)
        archive = self.layout.archive(name, tag)
        if self.fresh or not archive.is_file():
            return None
        os.utime(archive)  # used now: `prune` goes by this
        self.progress.say(f"{short_ref(name, tag)} is built already")
        return Built(name, short_ref(name, tag), archive, built_now=False)

    def reuse_all(self, names: Sequence[str]) -> list[Built]:
        """All of them, or none."""
        known = [self.reuse(name, dockerfile(name)) for name in names]
        return [image for image in known if image] if all(known) else []

    def clear(self) -> None:
        """Remove what a build left that failed or was killed: containers with their mounts, and files. The lock is ours."""
        if isinstance(self.engine, Buildah):
            self.engine.sweep()
        if self.layout.scratch.exists():
            shutil.rmtree(self.layout.scratch)

    def build(self, name: str) -> Built:
        """Build from a copy of the tree, so that the tag is that of the content whatever is edited meanwhile."""
        self.layout.scratch.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=self.layout.scratch) as folder:
            recipe = snapshot(dockerfile(name), Path(folder) / "context")
            # another process may have built it while this one waited for the lock
            return self.reuse(name, recipe) or self._build(name, recipe, Path(folder))

    def _build(self, name: str, recipe: Path, folder: Path) -> Built:
        tag = self.tag(recipe)
        host = read_host(self.pip, self._ensure_base())
        request = BuildRequest(
            dockerfile=recipe,
            ref=full_ref(name, tag),
            arguments={
                "BASE": self.base_ref,
                "WHEELS_ID": host.find_links.identity,
                "VERSION": version(),
                "REVISION": revision(),
            },
            secrets=_write_secrets(host, folder / "secrets"),
            wheels=stage(host.find_links, folder / "wheels") if host.find_links.files else None,
            fresh=self.fresh,
            log=self.layout.log(f"build-{name}"),
        )
        log = self.engine.build(request, self.progress)
        unfinished = folder / "archive.tar"
        self.engine.export(request.ref, unfinished, self.progress, self.layout.log(f"export-{name}"))
        self.layout.record(name, tag).write_text(json.dumps({"layers": layers_in(log)}) + "\n")
        archive = self.layout.archive(name, tag)
        unfinished.rename(archive)
        self.progress.say(f"{short_ref(name, tag)}: {read(archive).unpacked_bytes / 1e6:.0f} MB unpacked")
        return Built(name, short_ref(name, tag), archive, built_now=True)

    def _ensure_base(self) -> str | None:
        """Have the base in the engine's store; the lines for apt where it has none of its own."""
        if self.base_ref != debian.reference():
            return None
        made = debian.ensure_base(self.layout, self.pip, self.progress)
        if self.engine.image_id(self.base_ref) is None:
            self.engine.load_base(made.tarball, self.base_ref, self.progress)
        return made.sources


def layers_in(log: str) -> list[str]:
    """Ids, whole or shortened, of the images that a build of buildah went through, made or found in its cache."""
    return list(dict.fromkeys(re.findall(r"^--> (?:Using cache )?([0-9a-f]{11,64})$", log, re.MULTILINE)))


def _write_secrets(host: HostSettings, folder: Path) -> dict[str, Path]:
    """One file per secret, for this user's eyes only."""
    folder.mkdir(mode=0o700)
    paths = {name: folder / name for name in host.secrets}
    for name, path in paths.items():
        path.touch(mode=0o600)
        path.write_bytes(host.secrets[name])
    return paths
