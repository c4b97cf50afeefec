"""The Debian base: a name that does not depend on the day, sources that are the host's business, a tree without ballast."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.progress import Progress
from images import base
from images.layout import Layout


def test_identity_is_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = base.identity()
    assert base.identity() == before
    monkeypatch.setattr(base, "RECIPE", "another")
    assert base.identity() != before
    assert base.reference() == f"localhost/quire/base:{base.identity()}"


@pytest.mark.parametrize(
    ("mirror", "lines"),
    [
        ("http://m.test/debian/", ("debian bookworm", "debian bookworm-updates", "debian-security bookworm-security")),
        ("http://m.test/copy", ("copy bookworm", "copy bookworm-updates")),
    ],
)
def test_sources_follow_from_the_mirror(mirror: str, lines: tuple[str, ...]) -> None:
    assert base._sources_of(mirror) == tuple(f"deb http://m.test/{line} main" for line in lines)


def test_a_base_that_is_there_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tarball = tmp_path / f"base-{base.identity()}.tar"
    tarball.touch()
    tarball.with_suffix(".json").write_text(json.dumps({"mirror": "http://m.test/debian"}))
    monkeypatch.setattr(base, "debian_sources", lambda suite: ())
    monkeypatch.setattr(base, "_make", lambda *_: pytest.fail("made again"))
    made = base.ensure_base(Layout(tmp_path), {}, Progress())
    assert made.tarball == tarball
    assert made.sources.splitlines()[0] == "deb http://m.test/debian bookworm main"
    monkeypatch.setattr(base, "debian_sources", lambda suite: (f"deb http://own.test/ {suite} main",))
    assert base.ensure_base(Layout(tmp_path), {}, Progress()).sources == "deb http://own.test/ bookworm main\n"


def test_trimming_leaves_licences_and_no_trace_of_the_host(tmp_path: Path) -> None:
    keep = ["usr/share/doc/libc6/copyright", "usr/bin/sh", "etc/apt/trusted.gpg.d/debian.asc", "var/lib/dpkg/status"]
    drop = ["etc/resolv.conf", "etc/hostname", "etc/apt/sources.list", "usr/share/doc/libc6/changelog.gz", "var/log/apt/x.log",
            "usr/share/man/man1/sh.1.gz", "usr/share/locale/de/x.mo", "var/lib/apt/lists/mirror_Packages", "run/secrets/pip_conf"]  # fmt: skip
    for name in (*keep, *drop):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    base._trim(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == set(keep)
