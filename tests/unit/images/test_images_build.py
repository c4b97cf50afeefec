"""One build after the other, with a shell script in docker's place: what is built, what is not, and what a failure leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.errors import CommandError
from cluster.progress import Progress
from images import base as debian
from images import build as module
from images.__main__ import parser
from images.build import Wanted, build, layers_in
from images.layout import REPOSITORY, Layout

WriteArchive = Callable[..., Path]
DOCKER = """#!/bin/sh
echo "$@" >> "$FAKE/calls"
case "$1" in
  images)
    [ -e "$FAKE/no-base" ] || echo "sha256:aa debian:bookworm-slim"
    [ ! -e "$FAKE/in-use" ] || echo "quire/operator dev-old" ;;
  pull) [ ! -e "$FAKE/offline" ] || exit 1; rm "$FAKE/no-base" ;;
  rmi) echo "conflict: image is being used by a container" >&2; exit 1 ;;
  buildx)
    [ "$2" = version ] && exit 0
    [ -e "$FAKE/broken" ] && { echo "compiler says no"; exit 1; }
    for word in "$@"; do case "$word" in id=*) cat "${word#*src=}" >> "$FAKE/secrets" ;; esac; done ;;
  save) cp "$FAKE/archive.tar" "$3" ;;
esac
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_archive: WriteArchive) -> Path:
    """A docker that works, and a cache of its own."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "docker"
    program.write_text(DOCKER)
    program.chmod(0o755)
    write_archive(tmp_path / "archive.tar", [{"a": b"1234"}])
    monkeypatch.setenv("FAKE", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    # what `pip config list` would say; asking it each time takes most of a second, and test_images_host does ask
    options = ("index-url", "find-links")
    monkeypatch.setattr(
        module, "host_pip", lambda: {key: os.environ.get(f"PIP_{key.upper().replace('-', '_')}", "") for key in options}
    )
    return tmp_path


def calls(fake: Path, command: str) -> list[str]:
    return [line for line in (fake / "calls").read_text().splitlines() if line.startswith(command)]


def go(*names: str, fresh: bool = False) -> list[module.Built]:
    return build(names, Wanted(fresh=fresh), Progress())


def test_the_second_build_does_nothing(fake: Path) -> None:
    first = go("runtime", "operator")
    assert [image.built_now for image in first] == [True, True]
    assert all(image.archive.read_bytes() == (fake / "archive.tar").read_bytes() for image in first)
    assert len(calls(fake, "buildx build")) == len(calls(fake, "save")) == 2
    second = go("runtime", "operator")
    assert [image.built_now for image in second] == [False, False]
    assert [image.archive for image in second] == [image.archive for image in first]
    assert len(calls(fake, "buildx build")) == 2


def test_a_base_that_cannot_be_pulled_is_not_asked_for_again(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake / "no-base").touch()
    (fake / "offline").touch()
    monkeypatch.setattr(debian, "ensure_base", lambda *_: debian.Base(fake / "archive.tar", ""))
    (first,) = go("operator")
    assert f"BASE={debian.reference()}" in calls(fake, "buildx build")[0] and len(calls(fake, "pull")) == 1
    (second,) = go("operator")
    assert second.archive == first.archive and not second.built_now
    assert len(calls(fake, "pull")) == 1


def test_a_base_that_can_be_pulled_is_and_counts(fake: Path) -> None:
    (known,) = go("operator")
    (fake / "no-base").touch()
    (again,) = go("operator")
    assert again.archive == known.archive and not again.built_now
    assert len(calls(fake, "pull")) == 1


@pytest.mark.parametrize("offline", [True, False])
def test_an_explicit_base_never_falls_back(fake: Path, offline: bool) -> None:
    if offline:
        (fake / "offline").touch()
    (fake / "no-base").touch()
    wanted = Wanted(base="mirror.test/debian:12")
    if offline:
        with pytest.raises(CommandError, match="pull"):
            build(["operator"], wanted, Progress())
    else:
        build(["operator"], wanted, Progress())
        assert "BASE=mirror.test/debian:12" in calls(fake, "buildx build")[0]


def test_an_old_image_in_use_does_not_fail_what_is_built(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (fake / "in-use").touch()
    (image,) = go("operator")
    assert image.built_now and image.archive.exists()
    assert calls(fake, "rmi") == ["rmi docker.io/quire/operator:dev-old"]
    error = capsys.readouterr().err
    assert "old images could not be pruned" in error and "being used by a container" in error


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_IMAGE_ENGINE", "podman")
    monkeypatch.setenv("QUIRE_IMAGE_BASE", "")
    assert Wanted.of_environment() == Wanted(engine="podman", base=None)
    assert parser().parse_args(["build", "runtime"]).engine == "podman"


def test_fresh_builds_again_without_the_layer_cache(fake: Path) -> None:
    go("operator")
    assert [image.built_now for image in go("operator", fresh=True)] == [True]
    assert ["--no-cache" in line for line in calls(fake, "buildx build")] == [False, True]


def test_a_failure_says_why_and_leaves_nothing(fake: Path) -> None:
    (fake / "broken").touch()
    with pytest.raises(
        CommandError, match=r"(?s)build quire/operator:dev-.* failed with exit status 1.*compiler says no"
    ):
        go("operator")
    layout = Layout.of_user()
    assert layout.archives("operator") == []
    assert not layout.scratch.exists()


def test_secrets_reach_the_build_as_files_that_are_gone_afterwards(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@index.test/simple")
    go("operator")
    assert "hunter2" in (fake / "secrets").read_text()
    assert "hunter2" not in (fake / "calls").read_text()
    left = [path for path in (fake / "cache").rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert left == []


def test_wheels_of_the_host_become_the_stage_and_change_the_tag(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain,) = go("operator")
    wheels = fake / "wheels"
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-py3-none-any.whl").write_bytes(b"cpu")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    (other,) = go("operator")
    assert other.ref != plain.ref
    assert ["--build-context wheels=" in line for line in calls(fake, "buildx build")] == [False, True]


def test_two_at_a_time_build_once(fake: Path) -> None:
    command = [sys.executable, "-m", "images", "build", "operator", "--json"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "e2e")}
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert answers[0] == answers[1]
    assert len(calls(fake, "buildx build")) == 1


def test_the_commit_is_a_label_and_not_part_of_the_tag(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "revision", lambda: "abc123")
    (before,) = go("operator")
    assert "--build-arg REVISION=abc123" in calls(fake, "buildx build")[0]
    monkeypatch.setattr(module, "revision", lambda: "def456")
    (after,) = go("operator")
    assert after.archive == before.archive and not after.built_now


def test_only_the_last_two_archives_stay(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    for number in range(4):
        monkeypatch.setattr("images.identity.RECIPE", f"test {number}")
        (image,) = go("operator")
        os.utime(image.archive, (number + 1, number + 1))
        built.append(image.archive)
    assert [archive.exists() for archive in built] == [False, False, True, True]


def test_layers_of_buildahs_log() -> None:
    full = "0c085394e10e09cbd1d173b78e86f1a15322452bd6c9144759800f071602cc8a"
    log = f"[2/4] STEP 2/2: RUN x\n--> Using cache {full}\n--> {full[:11]}\n--> 88a5bd68611\n--> not one\n"
    assert layers_in(log) == [full, full[:11], "88a5bd68611"]


def test_an_edit_during_the_build_does_not_end_under_the_old_tag(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = fake / "tree"
    (tree / "operator").mkdir(parents=True)
    (tree / "Dockerfile.operator").write_text("FROM x\nCOPY operator/ /src/\n")
    (tree / ".dockerignore").write_text("*\n!operator\n")
    (tree / "operator" / "a.py").write_text("a = 1\n")
    monkeypatch.setattr(module, "dockerfile", lambda name: tree / f"Dockerfile.{name}")
    seen = fake / "seen"
    program = fake / "bin" / "docker"
    edit = f"echo 'a = 2' > {tree}/operator/a.py; for last in \"$@\"; do :; done; cat $last/operator/a.py >> {seen}"
    program.write_text(program.read_text().replace('[ -e "$FAKE/broken"', f'{edit}\n    [ -e "$FAKE/broken"'))
    (first,) = go("operator")
    (second,) = go("operator")
    assert seen.read_text() == "a = 1\na = 2\n"
    assert first.ref != second.ref
