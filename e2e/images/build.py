"""Build what is missing: tag by content, base, secrets, engine, archive. An archive that exists for the tag means no work at all."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import prerequisites
from cluster.caches import exclusive
from cluster.errors import HarnessError
from cluster.progress import Progress
from images import base as debian
from images.contents import read
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


def build(names: Sequence[str], wanted: Wanted, progress: Progress, layout: Layout | None = None) -> list[Built]:
    """Build the named images unless their archives exist, in the order given."""
    place = layout or Layout.of_user()
    place.records.mkdir(parents=True, exist_ok=True)
    engine = choose(place, wanted.engine, lambda: _install(progress))
    base_ref, base_identity = _choose_base(engine, wanted, progress)
    pip = host_pip()
    wheels_identity = parse_find_links(pip.get("find-links", "")).identity
    tags = {
        name: content_tag(dockerfile(name), base_identity=base_identity, wheels_identity=wheels_identity)
        for name in names
    }
    if not wanted.fresh and all(_exists(place, name, tag) for name, tag in tags.items()):
        return [_reuse(place, name, tag, progress) for name, tag in tags.items()]
    with exclusive(place.lock, progress, "the image builds"):
        _clear(place, engine)
        try:
            built = [
                _build_one(place, engine, name, tag, base_ref, pip, wanted, progress) for name, tag in tags.items()
            ]
            prune(place, engine)
            return built
        finally:
            shutil.rmtree(place.scratch, ignore_errors=True)


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


def _choose_base(engine: Engine, wanted: Wanted, progress: Progress) -> tuple[str, str]:
    """Reference and identity. An explicit base never falls back; otherwise a public one is tried where the engine pulls."""
    if wanted.base not in {None, "debootstrap"}:
        assert wanted.base is not None
        if engine.image_id(wanted.base) is None:
            with progress.step(f"pull {wanted.base}"):
                engine.pull(wanted.base)
        return wanted.base, engine.image_id(wanted.base) or wanted.base
    if wanted.base is None and engine.pulls_base:
        known = engine.image_id(debian.REGISTRY_BASE)
        if known is None:
            try:
                with progress.step(f"pull {debian.REGISTRY_BASE}"):
                    engine.pull(debian.REGISTRY_BASE)
                known = engine.image_id(debian.REGISTRY_BASE)
            except HarnessError as error:
                progress.say(f"no base image from a registry, so one is made by debootstrap:\n{error}")
        if known is not None:
            return debian.REGISTRY_BASE, known
    return debian.reference(), debian.identity()


def _exists(layout: Layout, name: str, tag: str) -> bool:
    return layout.archive(name, tag).is_file()


def _reuse(layout: Layout, name: str, tag: str, progress: Progress) -> Built:
    archive = layout.archive(name, tag)
    os.utime(archive)  # used now: `prune` goes by this
    progress.say(f"{short_ref(name, tag)} is built already")
    return Built(name, short_ref(name, tag), archive, built_now=False)


def _clear(layout: Layout, engine: Engine) -> None:
    """Remove what a killed build left. The lock is ours."""
    if isinstance(engine, Buildah):
        engine.sweep()
    shutil.rmtree(layout.scratch, ignore_errors=True)
    layout.scratch.mkdir(parents=True)


def _build_one(
    layout: Layout,
    engine: Engine,
    name: str,
    tag: str,
    base_ref: str,
    pip: Mapping[str, str],
    wanted: Wanted,
    progress: Progress,
) -> Built:
    if _exists(layout, name, tag) and not wanted.fresh:  # another process built it while this one waited
        return _reuse(layout, name, tag, progress)
    sources = None
    if base_ref == debian.reference():
        made = debian.ensure_base(layout, pip, progress)
        sources = made.sources
        if engine.image_id(base_ref) is None:
            engine.load_base(made.tarball, base_ref, progress)
    host = read_host(pip, sources)
    with _inputs(layout, host) as (secrets, wheels):
        ref = full_ref(name, tag)
        arguments = {
            "BASE": base_ref,
            "WHEELS_ID": host.find_links.identity,
            "VERSION": version(),
            "REVISION": revision(),
        }
        request = BuildRequest(
            name, dockerfile(name), ref, arguments, secrets, wheels, wanted.fresh, layout.log(f"build-{name}")
        )
        log = engine.build(request, progress)
    unfinished = layout.scratch / f"{name}-{tag}.tar"
    engine.export(ref, unfinished, progress, layout.log(f"export-{name}"))
    layout.record(name, tag).write_text(json.dumps({"layers": layers_in(log)}) + "\n")
    archive = layout.archive(name, tag)
    unfinished.rename(archive)
    size = read(archive).unpacked_bytes
    progress.say(f"{short_ref(name, tag)}: {size / 1e6:.0f} MB unpacked")
    return Built(name, short_ref(name, tag), archive, built_now=True)


def layers_in(log: str) -> list[str]:
    """Ids, whole or shortened, of the images that a build of buildah went through, made or found in its cache."""
    return list(dict.fromkeys(re.findall(r"^--> (?:Using cache )?([0-9a-f]{11,64})$", log, re.MULTILINE)))


@contextmanager
def _inputs(layout: Layout, host: HostSettings) -> Iterator[tuple[dict[str, Path], Path | None]]:
    """Secrets as files that only this user reads, gone afterwards; and the folder of wheels, if there are any."""
    with tempfile.TemporaryDirectory(prefix="inputs-", dir=layout.scratch) as folder:
        secrets = {}
        for name, content in host.secrets.items():
            path = Path(folder) / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            secrets[name] = path
        wheels = None
        if host.find_links.files:
            wheels = Path(folder) / "wheels"
            stage(host.find_links, wheels)
        yield secrets, wheels
