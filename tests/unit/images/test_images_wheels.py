"""PIP_FIND_LINKS in an image build: which files it means, and that they count in the image's identity."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster.errors import UsageError
from images import wheels
from images.wheels import FindLinks, parse_find_links, stage


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").write_bytes(b"torch")
    (tmp_path / "README").write_text("not a distribution")
    return tmp_path


def test_folders_files_and_pages(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "a-1.tar.gz").write_bytes(b"a")
    found = parse_find_links(f"{folder} file://{other}\n https://example.test/page {folder}/gone")
    assert [path.name for path in found.files] == ["a-1.tar.gz", "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"]
    assert found.urls == ("https://example.test/page",)


def test_nothing_is_nothing(tmp_path: Path) -> None:
    for value in ("", str(tmp_path), str(tmp_path / "gone")):
        assert parse_find_links(value) == FindLinks((), ())
        assert parse_find_links(value).identity == "none"


def test_a_local_page_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"PIP_FIND_LINKS names the page .*README; an image build takes folders"):
        parse_find_links(str(folder / "README"))


def test_identity_is_that_of_the_files_wherever_they_lie(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("copy")
    stage(parse_find_links(str(folder)), copy / "wheels")
    wheel = copy / "wheels" / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl"
    before = parse_find_links(str(folder)).identity
    assert parse_find_links(str(copy / "wheels")).identity == before
    wheel.unlink()
    wheel.write_bytes(b"Torch")
    assert parse_find_links(str(copy / "wheels")).identity != before


def test_staging_links_where_it_can_and_copies_where_it_cannot(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    links = parse_find_links(str(folder))
    stage(links, tmp_path / "linked")
    assert (tmp_path / "linked" / links.files[0].name).samefile(links.files[0])

    def refuse(*_: object) -> None:
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    stage(links, tmp_path / "copied")
    copied = tmp_path / "copied" / links.files[0].name
    assert not copied.samefile(links.files[0]) and copied.read_bytes() == links.files[0].read_bytes()


def test_a_change_in_the_middle_of_a_large_file_changes_its_size_or_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "_TAIL_BYTES", 4)
    wheel = next(folder.glob("*.whl"))
    wheel.write_bytes(b"x" * 100 + b"tail")
    before = parse_find_links(str(folder)).identity
    wheel.write_bytes(b"x" * 101 + b"tail")
    assert parse_find_links(str(folder)).identity != before
