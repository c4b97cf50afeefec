"""Reading a docker-archive: what a container sees, how large it is, and that a search cannot miss at a cut."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.errors import UsageError
from images.contents import chunks, layers, read

WriteArchive = Callable[..., Path]
EMPTY_TAR = bytes(10240)


def test_upper_layers_hide_lower_ones_but_still_take_room(tmp_path: Path, write_archive: WriteArchive) -> None:
    archive = write_archive(
        tmp_path / "x.tar",
        [
            {"./etc/a": b"12345", "opt/b": b"123", "opt/sub/c": b"1", "var/d": b"12"},
            {"etc/a": b"1", "opt/.wh.sub": b"", "var/.wh..wh..opq": b"", "var/e": b"1234"},
        ],
    )
    contents = read(archive)
    assert {path: entry.size for path, entry in contents.files().items()} == {"etc/a": 1, "opt/b": 3, "var/e": 4}
    assert contents.layer_bytes == (11, 5)
    assert contents.unpacked_bytes == 16
    assert contents.config["config"]["User"] == "1"


def test_no_cut_hides_a_match(tmp_path: Path, write_archive: WriteArchive) -> None:
    archive = write_archive(tmp_path / "x.tar", [{"f": b"." * 700 + b"needle" + b"." * 700}])
    for size in range(512, 1600, 97):
        assert any(b"needle" in chunk for chunk in chunks(archive, size))


def test_compressed_layers_are_searched_and_listed_as_plain_ones(tmp_path: Path, write_archive: WriteArchive) -> None:
    files = [{"f": b"needle" * 900, "g": b"1"}, {"h": b"12"}]
    archive = write_archive(tmp_path / "x.tar", files, gzip.compress)
    assert b"needle" not in archive.read_bytes()
    assert any(b"needle" in chunk for chunk in chunks(archive))
    plain = write_archive(tmp_path / "y.tar", files)
    assert read(archive) == read(plain)
    assert [layer.read() for layer in layers(archive)] == [layer.read() for layer in layers(plain)]


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda layer: gzip.compress(layer)[:-20], "end-of-stream"),
        (lambda layer: gzip.compress(layer)[:20] + bytes(100), "decompressing"),
        (lambda layer: b"\x28\xb5\x2f\xfd" + layer, "layer 0.tar is compressed with zstd"),
    ],
)
def test_a_layer_that_cannot_be_read_is_an_error_and_not_an_empty_search(
    tmp_path: Path, write_archive: WriteArchive, pack: Callable[[bytes], bytes], message: str
) -> None:
    archive = write_archive(tmp_path / "x.tar", [{"f": b"needle" * 900}], pack)
    for look in (read, lambda path: list(chunks(path))):
        with pytest.raises(UsageError, match=rf"x\.tar cannot be read: .*{message}.*; delete it and build again"):
            look(archive)


@pytest.mark.parametrize("content", [b"", b"no tar at all", EMPTY_TAR])
def test_what_is_no_archive_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(UsageError, match=r"x\.tar cannot be read: .*; delete it and build again"):
        read(tmp_path / "x.tar")
