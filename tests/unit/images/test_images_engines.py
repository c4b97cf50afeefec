"""The choice of an engine, and what its commands are. Engines are shell scripts that play the programs on PATH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.errors import UsageError
from cluster.progress import Progress
from images.engines import Buildah, BuildRequest, Docker, Podman, build_flags, choose, current_step
from images.layout import Layout

WORKS = "exit 0"
NO_DAEMON = 'echo "Cannot connect to the Docker daemon" >&2; exit 1'
NO_BUILDX = '[ "$1" = version ] || exit 1'


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH to put programs on, seen as root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return folder


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("present", "chosen"),
    [
        ({"docker": WORKS, "podman": WORKS, "buildah": WORKS}, "docker"),
        ({"docker": NO_DAEMON, "podman": WORKS}, "podman"),
        ({"docker": NO_BUILDX, "podman": WORKS}, "podman"),
        ({"docker": NO_DAEMON, "podman": "exit 125", "buildah": WORKS}, "buildah"),
        ({"docker": NO_DAEMON, "buildah": WORKS}, "buildah"),
    ],
)
def test_the_first_that_works(programs: Path, tmp_path: Path, present: dict[str, str], chosen: str) -> None:
    for name, script in present.items():
        put(programs, name, script)
    assert choose(Layout(tmp_path), None, lambda: pytest.fail("nothing to install")).name == chosen


def test_nothing_works_so_buildah_is_installed(programs: Path, tmp_path: Path) -> None:
    put(programs, "docker", NO_DAEMON)
    installed = []
    engine = choose(Layout(tmp_path), None, lambda: installed.append("buildah"))
    assert (engine.name, installed) == ("buildah", ["buildah"])


def test_an_explicit_choice_never_falls_back(programs: Path, tmp_path: Path) -> None:
    put(programs, "docker", NO_DAEMON)
    put(programs, "podman", WORKS)
    layout = Layout(tmp_path)
    with pytest.raises(UsageError, match="--engine docker, but it does not work here"):
        choose(layout, "docker", lambda: None)
    with pytest.raises(UsageError, match="--engine kaniko is not an image engine; it can be docker, podman, buildah"):
        choose(layout, "kaniko", lambda: None)
    assert choose(layout, "podman", lambda: None).name == "podman"
    assert choose(layout, "buildah", lambda: put(programs, "buildah", WORKS)).name == "buildah"


def test_buildah_counts_for_root_only(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(programs, "buildah", WORKS)
    assert Buildah(Layout(tmp_path)).works()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not Buildah(Layout(tmp_path)).works()


def request(tmp_path: Path, **changes: object) -> BuildRequest:
    values: dict[str, object] = {
        "dockerfile": tmp_path / "Dockerfile.runtime",
        "ref": "docker.io/quire/runtime:dev-1",
        "arguments": {"BASE": "b"},
        "secrets": {"pip_conf": tmp_path / "pip_conf"},
        "wheels": tmp_path / "wheels",
        "fresh": False,
        "log": tmp_path / "log",
    }
    return BuildRequest(**(values | changes))  # type: ignore[arg-type]


def test_secrets_go_as_files_and_wheels_as_a_context(tmp_path: Path) -> None:
    flags = build_flags(request(tmp_path))
    assert f"id=pip_conf,src={tmp_path}/pip_conf" in flags
    assert flags[flags.index("--build-context") + 1] == f"wheels={tmp_path}/wheels"
    assert flags[-1] == str(tmp_path)
    assert "--no-cache" not in flags
    assert "--no-cache" in build_flags(request(tmp_path, fresh=True))
    assert "--build-context" not in build_flags(request(tmp_path, wheels=None))


def test_docker_builds_in_its_daemon_and_no_index(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(programs, "docker", f'echo "$BUILDX_BUILDER $BUILDX_NO_DEFAULT_ATTESTATIONS $*" > {tmp_path}/call')
    monkeypatch.setenv("BUILDX_BUILDER", "in-a-container")
    Docker(Layout(tmp_path)).build(request(tmp_path), Progress())
    assert (tmp_path / "call").read_text().startswith("default 1 buildx build --load ")


@pytest.mark.parametrize(
    ("engine", "listing"),
    [
        (Docker, "sha256:aa quire/runtime:dev-1\nsha256:bb debian:bookworm-slim\nsha256:cc <none>:<none>"),
        (Podman, "sha256:aa docker.io/quire/runtime:dev-1\nsha256:bb docker.io/library/debian:bookworm-slim"),
        (Buildah, "sha256:aa   docker.io/quire/runtime:dev-1\nsha256:bb docker.io/library/debian:bookworm-slim"),
    ],
)
def test_local_images_are_found_however_the_engine_writes_them(
    programs: Path, tmp_path: Path, engine: type[Docker | Podman | Buildah], listing: str
) -> None:
    here = engine(Layout(tmp_path))
    put(programs, here.name, f"echo '{listing}'")
    assert here.image_id("docker.io/quire/runtime:dev-1") == "sha256:aa"
    assert here.image_id("docker.io/library/debian:bookworm-slim") == "sha256:bb"
    assert here.image_id("docker.io/quire/runtime:dev-2") is None


def test_tags_of_a_repository(programs: Path, tmp_path: Path) -> None:
    listing = "quire/runtime dev-1\nquire/operator dev-2\nquire/runtime <none>\n<none> <none>"
    put(programs, "docker", f"echo '{listing}'")
    assert Docker(Layout(tmp_path)).tags("docker.io/quire/runtime") == ("dev-1",)


@pytest.mark.parametrize(
    ("output", "step"),
    [
        (["[5/13] STEP 1/4: FROM 0c08 AS torch", "[5/13] STEP 4/4: RUN --mount=type=secret,id=x pip", " Downloading torch"],
         "stage torch (5/13): Downloading torch"),
        (["[2/3] STEP 1/2: FROM a AS x", "[3/3] STEP 1/9: FROM b", "[2/3] STEP 2/2: RUN make", "cc"], "stage x (2/3): cc"),
        (["STEP 1/2: FROM x", "STEP 2/2: RUN --mount=type=secret,id=x pip install"], "stage final: RUN pip install"),
        (["#12 [torch 3/3] RUN pip", "#12 4.1 Collecting torch", ""], "#12 4.1 Collecting torch"),
        ([], ""),
    ],
)  # fmt: skip
def test_progress_names_the_stage(output: list[str], step: str) -> None:
    assert current_step(output) == step
