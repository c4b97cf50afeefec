"""What builds images: docker, podman or buildah behind one interface, and the choice among them.

An engine counts only when it works: a docker client without a daemon does not. docker and podman keep images in the
user's own store; buildah gets a store of its own in the cache folder, which `prune` may clean as it likes.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cluster.errors import HarnessError, UsageError
from cluster.progress import Progress
from cluster.run import run
from cluster.stream import last_line, stream
from images.host import build_environment
from images.layout import Layout

PROBE_DEADLINE_S = 15.0
PULL_DEADLINE_S = 180.0
BUILD_DEADLINE_S = 3000.0
EXPORT_DEADLINE_S = 600.0


@dataclass(frozen=True)
class BuildRequest:
    """One build. `secrets` maps ids to files; `wheels` is the folder that replaces the stage of that name, if any."""

    dockerfile: Path
    ref: str
    arguments: Mapping[str, str]
    secrets: Mapping[str, Path]
    wheels: Path | None
    fresh: bool
    log: Path


class Engine(Protocol):
    """What the builds need of an engine."""

    @property
    def name(self) -> str:
        """The program's name."""

    @property
    def pulls_base(self) -> bool:
        """Whether a public base image is worth a try: docker and podman are the user's, set up with the user's registries."""

    def works(self) -> bool:
        """Whether images can be built with it now."""

    def image_id(self, ref: str) -> str | None:
        """Identity of a local image."""

    def pull(self, ref: str) -> None:
        """Fetch an image from its registry."""

    def load_base(self, tarball: Path, ref: str, progress: Progress) -> None:
        """Make an image of one layer from a root file system."""

    def build(self, request: BuildRequest, progress: Progress) -> str:
        """Build, tag, and return the build's log."""

    def export(self, ref: str, archive: Path, progress: Progress, log: Path) -> None:
        """Write an uncompressed docker-archive, which every engine, kind and containerd load."""

    def remove(self, ref: str) -> None:
        """Forget a tag; layers that nothing else uses go too."""

    def tags(self, repository: str) -> tuple[str, ...]:
        """Tags of a repository in the local store."""


def build_flags(request: BuildRequest) -> list[str]:
    """Flags of `build` that the three command lines share."""
    flags = ["--file", str(request.dockerfile), "--tag", request.ref]
    for key, value in request.arguments.items():
        flags += ["--build-arg", f"{key}={value}"]
    for key, path in request.secrets.items():
        flags += ["--secret", f"id={key},src={path}"]
    if request.wheels is not None:
        flags += ["--build-context", f"wheels={request.wheels}"]
    if request.fresh:
        flags.append("--no-cache")
    return [*flags, str(request.dockerfile.parent)]


def current_step(lines: Sequence[str]) -> str:
    """Where a build is: `stage torch (5/13): Downloading …` for buildah and podman, docker's own line otherwise."""
    stages: dict[str, str] = {}
    where = ""
    for line in lines:  # stages of buildah take turns: a STEP line carries the stage's number, only its FROM the name
        if match := re.match(r"(?:\[(\d+/\d+)\] )?STEP \d+/\d+: (?:FROM \S+(?: AS (\S+))?)?", line):
            number, name = match[1] or "", match[2]
            if " FROM " in line:
                stages[number] = name or "final"
            where = f"stage {stages.get(number, '?')}{f' ({number})' if number else ''}: "
    return where + re.sub(r"--mount=\S+ +|^.*STEP \d+/\d+: ", "", last_line(lines))


def new_run() -> tuple[str, str]:
    """buildah 1.28 and podman 4.3 mount only stages that have a step which is not from the cache; RUN_ID makes one."""
    return "--build-arg", f"RUN_ID={uuid.uuid4().hex}"


@dataclass(frozen=True)
class CommandLine:
    """What the three have in common; the subclasses say where they differ."""

    layout: Layout
    name: str
    pulls_base: bool
    global_flags: tuple[str, ...] = ()
    build_command: tuple[str, ...] = ("build",)
    extra_environment: tuple[tuple[str, str], ...] = ()
    build_prefix: tuple[str, ...] = ()
    """What a build runs under."""
    name_field: str = "Repository"
    """What the engine calls an image's name in --format."""

    def call(self, *args: str, deadline_s: float = 60.0) -> str:
        """Run the engine and return its standard output."""
        return run(
            [self.name, *self.global_flags, *args],
            deadline_s=deadline_s,
            env={**os.environ, **dict(self.extra_environment)},
        )

    def succeeds(self, *args: str) -> bool:
        """Whether the engine answers such a question with success, soon."""
        try:
            self.call(*args, deadline_s=PROBE_DEADLINE_S)
        except HarnessError:
            return False
        return True

    def image_id(self, ref: str) -> str | None:
        listing = self.call("images", "--no-trunc", "--format", f"{{{{.ID}}}} {{{{.{self.name_field}}}}}:{{{{.Tag}}}}")
        # two columns, which buildah pads
        names = {name: image for image, name in (line.split() for line in listing.splitlines())}
        return names.get(ref) or names.get(ref.removeprefix("docker.io/library/").removeprefix("docker.io/"))

    def pull(self, ref: str) -> None:
        self.call("pull", "--quiet", ref, deadline_s=PULL_DEADLINE_S)

    def build(self, request: BuildRequest, progress: Progress) -> str:
        return stream(
            [*self.build_prefix, self.name, *self.global_flags, *self.build_command, *build_flags(request)],
            title=f"build {request.ref.partition('/')[2]} with {self.name}",
            log=request.log,
            deadline_s=BUILD_DEADLINE_S,
            progress=progress,
            env={**build_environment(os.environ), **dict(self.extra_environment)},
            describe=current_step,
        )

    def remove(self, ref: str) -> None:
        self.call("rmi", ref, deadline_s=120.0)

    def tags(self, repository: str) -> tuple[str, ...]:
        listing = self.call("images", "--format", f"{{{{.{self.name_field}}}}} {{{{.Tag}}}}")
        images = [line.split() for line in listing.splitlines()]
        return tuple(
            tag
            for name, tag in images
            if name in {repository, repository.removeprefix("docker.io/")} and tag != "<none>"
        )


class Docker(CommandLine):
    """The daemon's own builder through buildx, which knows named contexts and secrets."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(
            layout,
            "docker",
            pulls_base=True,
            build_command=("buildx", "build", "--load", "--progress=plain"),
            extra_environment=(
                # A builder in a container, which the user may have chosen, cannot see the images of the daemon.
                ("BUILDX_BUILDER", "default"),
                # One image and no index of it and its provenance. The flag --provenance=false fails before buildx 0.10.
                ("BUILDX_NO_DEFAULT_ATTESTATIONS", "1"),
            ),
        )

    def works(self) -> bool:
        return self.succeeds("version", "--format", "{{.Server.Version}}") and self.succeeds("buildx", "version")

    def load_base(self, tarball: Path, ref: str, progress: Progress) -> None:
        with progress.step("make an image of the base"):
            self.call("import", str(tarball), ref, deadline_s=EXPORT_DEADLINE_S)

    def export(self, ref: str, archive: Path, progress: Progress, log: Path) -> None:
        command = [self.name, "save", "--output", str(archive), ref]
        stream(
            command,
            title=f"write the archive of {ref.partition('/')[2]}",
            log=log,
            deadline_s=EXPORT_DEADLINE_S,
            progress=progress,
        )


class Podman(CommandLine):
    """Like buildah, on the user's store. The host's network, because the host's settings may name a proxy on it."""

    def __init__(self, layout: Layout) -> None:
        command = ("build", "--layers", "--network", "host", "--http-proxy=false")
        # For root `chroot` needs no container runtime, whose cgroups a sandbox may refuse although `podman info` is fine.
        isolation = ("--isolation", "chroot") if os.geteuid() == 0 else ()
        super().__init__(layout, "podman", pulls_base=True, build_command=(*command, *isolation, *new_run()))

    def works(self) -> bool:
        return self.succeeds("info")

    def load_base(self, tarball: Path, ref: str, progress: Progress) -> None:
        with progress.step("make an image of the base"):
            self.call("import", "--quiet", str(tarball), ref, deadline_s=EXPORT_DEADLINE_S)

    def export(self, ref: str, archive: Path, progress: Progress, log: Path) -> None:
        command = [self.name, "save", "--format", "docker-archive", "--output", str(archive), ref]
        stream(
            command,
            title=f"write the archive of {ref.partition('/')[2]}",
            log=log,
            deadline_s=EXPORT_DEADLINE_S,
            progress=progress,
        )


class Buildah(CommandLine):
    """No daemon and no container runtime: `chroot` isolation needs only root, also inside a sandbox."""

    def __init__(self, layout: Layout) -> None:
        store = ("--root", str(layout.storage), "--runroot", str(layout.run_root), "--storage-driver", "overlay")
        super().__init__(
            layout,
            "buildah",
            pulls_base=False,
            global_flags=store,
            build_command=("build", "--layers", "--isolation", "chroot", "--network", "host", *new_run()),
            extra_environment=(("TMPDIR", str(layout.scratch)),),
            # However this process ends, the build ends with it, and with the build its mounts.
            build_prefix=("unshare", "--mount", "--fork", "--kill-child"),
            name_field="Name",
        )

    def call(self, *args: str, deadline_s: float = 60.0) -> str:
        self.layout.scratch.mkdir(parents=True, exist_ok=True)  # its TMPDIR
        return super().call(*args, deadline_s=deadline_s)

    def works(self) -> bool:
        return os.geteuid() == 0 and shutil.which("buildah") is not None

    def load_base(self, tarball: Path, ref: str, progress: Progress) -> None:
        with progress.step("make an image of the base"):
            container = self.call("from", "scratch").strip()
            try:
                self.call("add", "--quiet", container, str(tarball), "/", deadline_s=EXPORT_DEADLINE_S)
                self.call("commit", "--quiet", "--timestamp", "0", container, ref, deadline_s=EXPORT_DEADLINE_S)
            finally:
                self.call("rm", container)

    def export(self, ref: str, archive: Path, progress: Progress, log: Path) -> None:
        command = [self.name, *self.global_flags, "push", "--quiet", ref, f"docker-archive:{archive}:{ref}"]
        environment = {**os.environ, **dict(self.extra_environment)}
        stream(
            command,
            title=f"write the archive of {ref.partition('/')[2]}",
            log=log,
            deadline_s=EXPORT_DEADLINE_S,
            progress=progress,
            env=environment,
        )

    def sweep(self) -> None:
        """Unmount and forget the working containers of builds that were killed."""
        if self.layout.storage.is_dir() and self.call("containers", "--quiet", "--all").split():
            self.call("rm", "--all", deadline_s=120.0)

    def drop_unused(self, keep: Sequence[str]) -> int:
        """Remove every image whose id starts with none of `keep` and that has no name; the number of those that went."""
        listing = self.call("images", "--all", "--no-trunc", "--format", "{{.ID}} {{.Name}}")
        images = [line.split() for line in listing.splitlines()]
        unused = [
            image.removeprefix("sha256:")
            for image, name in images
            if name == "<none>" and not any(image.removeprefix("sha256:").startswith(prefix) for prefix in keep)
        ]
        removed = 0
        for image in dict.fromkeys(unused):
            removed += self.succeeds("rmi", image)  # refused while a later step's image builds on it
        return removed


def choose(layout: Layout, wanted: str | None, install: Callable[[], None]) -> Engine:
    """The engine to build with: the wanted one or an error, else the first that works, else buildah after `install`."""
    engines: dict[str, Engine] = {engine.name: engine for engine in (Docker(layout), Podman(layout), Buildah(layout))}
    if wanted is not None:
        if wanted not in engines:
            raise UsageError(f"--engine {wanted} is not an image engine; it can be {', '.join(engines)}")
        if wanted == "buildah" and not engines[wanted].works():
            install()
        if not engines[wanted].works():
            raise UsageError(
                f"--engine {wanted}, but it does not work here (docker needs its daemon and buildx, buildah needs root)"
            )
        return engines[wanted]
    for engine in engines.values():
        if engine.works():
            return engine
    install()
    return engines["buildah"]
