"""Files of packed weights that are cut, damaged, half-written, or have no room; several processes at once."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.models import packed_file
from quire.models.packed_cache import PackedCache, Used, surplus
from quire_kernels.weight_bytes import bytes_of
from quire_testing.packed_starts import (
    EVERYTHING,
    INT4,
    INT8,
    TOKENS,
    fresh,
    held,
    mapped,
    native,
    start,
)
from quire_testing.tiny_models import make, save


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make("llama"), tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A model of one's own."""
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", EVERYTHING)


# ---- files that are not whole ----


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def short(path: Path) -> None:
    os.truncate(path, 60)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def patched(at: int, data: bytes) -> Callable[[Path], None]:
    def patch(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    return patch


def holes(path: Path) -> None:
    size = path.stat().st_size
    patched(4096, bytes(size - 4096))(path)


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (cut, "bytes, and should have"),
    (longer, "bytes, and should have"),
    (empty, "does not begin as such a file does"),
    (short, "its header is damaged|its header claims"),
    (patched(0, b"X"), "does not begin as such a file does"),
    (patched(7, b"\x7f"), "does not begin as such a file does"),
    (patched(8, b"\xff" * 8), "its header claims"),
    (patched(60, b"Q"), "its header is damaged"),
    (holes, "the bytes of embed are not those that were written"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGES)
def test_a_damaged_file_is_said_once_and_made_anew(
    damage: Callable[[Path], None], reason: str, folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    model = native(folder)
    _, expected = start(model, INT8, cache)
    [path] = held(cache)
    whole = path.read_bytes()
    damage(path)
    caplog.clear()
    count, found = start(model, INT8, cache)
    assert count > 0
    assert torch.equal(found, expected)
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(path) in said
    assert "packing again" in said
    assert any(each in said for each in reason.split("|"))
    assert path.read_bytes() == whole
    assert start(model, INT8, cache)[0] == 0


def test_a_file_under_anothers_name_is_not_believed(
    folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another model with the same matrices, and of other matrices."""
    model = native(folder)
    for precision, tokens in ((INT4, TOKENS), (INT4, TOKENS[:-1]), (INT8, TOKENS)):
        start(model, precision, cache, tokens)
    kept = held(cache)
    assert len(kept) == 3
    for path, other in ((kept[0], kept[1]), (kept[1], kept[2]), (kept[2], kept[0])):
        path.write_bytes(other.read_bytes())
    for precision, tokens in ((INT4, TOKENS), (INT4, TOKENS[:-1]), (INT8, TOKENS)):
        caplog.clear()
        assert start(model, precision, cache, tokens)[0] > 0
        assert "it holds other weights than its name says" in caplog.text


PROGRAM = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from quire.models import packed_file
from quire.models.loader import inspect
from quire.models.packed_cache import PackedCache
from quire.models.precision import Precision
from quire.models.source import resolve

{before}
builder = inspect(resolve(sys.argv[1])).plan()
cache = PackedCache(Path(sys.argv[2]), 1 << 40)
print("ready", flush=True)
sys.stdin.readline()
builder.load(Precision(torch.float32, torch.bfloat16, "int8"), 16, tuple, cache)
cache.wait()
print("done", flush=True)
"""
STOP_HALF_WAY = """
contents = packed_file.contents
def slow(*given):
    for index, piece in enumerate(contents(*given)):
        if index == 4:
            print("half", flush=True)
            sys.stdin.readline()
        yield piece
packed_file.contents = slow
"""
NO_LARGE_FILES = """
import logging, resource
logging.basicConfig(stream=sys.stdout, format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
"""


@contextmanager
def process(folder: Path, cache: PackedCache, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """A start of its own, which waits for a line when it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(before=before), str(folder), str(cache.folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONSAFEPATH": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        try:
            assert read_line(running) == "ready"
            yield running
        finally:
            running.kill()


def read_line(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def go_on(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()


def test_two_processes_at_once(folder: Path, cache: PackedCache) -> None:
    with process(folder, cache) as one, process(folder, cache) as other:
        for running in (one, other):
            go_on(running)
        assert [read_line(running) for running in (one, other)] == ["done", "done"]
    [path] = held(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    model = native(folder)
    expected = fresh(model, INT8)
    assert {name: bytes(bytes_of(each)) for name, each in mapped(cache, model, INT8).items()} == expected
    assert start(model, INT8, cache)[0] == 0


def test_a_crash_half_way_leaves_nothing_that_is_believed(folder: Path, cache: PackedCache) -> None:
    model = native(folder)
    with process(folder, cache, STOP_HALF_WAY) as running:
        go_on(running)
        assert read_line(running) == "half"
        [part] = held(cache)
        assert part.suffix == ".part"
        assert part.stat().st_size > 0
        os.utime(part, ns=(1, 1))  # as old as can be, but its writer lives
        assert start(model, INT8, cache)[0] > 0  # packs for itself, and leaves the writing to that one
        assert held(cache) == [part]
        running.kill()
        running.wait()
        assert held(cache) == [part]
    os.utime(part)
    count, expected = start(model, INT8, cache)
    assert count > 0
    assert {path.suffix for path in held(cache)} == {".part", ".packed"}  # it may be one that just begins
    os.utime(part, ns=(1, 1))
    start(model, INT4, cache)
    assert {path.suffix for path in held(cache)} == {".packed"}
    count, found = start(model, INT8, cache)
    assert count == 0
    assert torch.equal(found, expected)


def test_a_full_disk_is_said_once_and_stops_nothing(folder: Path, cache: PackedCache) -> None:
    """A limit for the size of files stands for it: the system refuses to write further, half-way."""
    with process(folder, cache, NO_LARGE_FILES) as running:
        go_on(running)
        assert running.stdout is not None
        said = running.stdout.read().splitlines()
    assert len(said) == 2
    assert said[0].startswith(
        f"packed weights are not kept in {cache.folder}: File too large. Each start packs them again"
    )
    assert said[1] == "done"
    assert held(cache) == []


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        folder = Path(shutil.copytree(saved, Path(place) / "model"))
        for path in (folder, *folder.iterdir()):
            path.chmod(0o755)
        cache = PackedCache(Path(place) / "packed", EVERYTHING)
        cache.folder.mkdir(mode=0o755)
        model = native(folder)
        cache.folder.chmod(0o555)
        with as_nobody():
            assert start(model, INT8, cache)[0] > 0
        [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert said == (
            f"packed weights are not kept in {cache.folder}: Permission denied. Each start packs them again; --packed-cache "
            "names another folder, or none"
        )
        cache.folder.chmod(0o755)
        start(model, INT8, cache)
        cache.folder.chmod(0o555)
        caplog.clear()
        with as_nobody():  # what is there is read all the same
            assert start(model, INT8, cache)[0] == 0
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        cache.folder.chmod(0o755)


def test_a_folder_that_cannot_be(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert start(native(folder), INT8, PackedCache(tmp_path / "file" / "packed", EVERYTHING))[0] > 0
    assert "Not a directory" in caplog.text


# ---- how much of it ----


def test_the_longest_unused_make_room() -> None:
    files = [Used("new", 30, 9), Used("old", 20, 1), Used("b", 25, 5), Used("a", 25, 5)]
    assert surplus(files, 100) == []
    assert surplus(files, 99) == ["old"]
    assert surplus(files, 80) == ["old"]
    assert surplus(files, 79) == ["old", "a"]
    assert surplus(files, 0) == ["old", "a", "b", "new"]
    assert surplus([], 0) == []


def test_a_folder_stays_below_its_size(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, place = native(folder), tmp_path / "packed"
    start(model, INT8, PackedCache(place, EVERYTHING))
    [one] = held(PackedCache(place, EVERYTHING))
    start(model, INT4, PackedCache(place, EVERYTHING))
    [other] = {*place.iterdir()} - {one}
    bystander = place / "README"
    bystander.write_text("not ours")
    os.utime(one, ns=(1, 1))
    os.utime(other, ns=(2, 2))
    assert start(model, INT8, PackedCache(place, EVERYTHING))[0] == 0  # now the other is the one not used for longest
    sizes = one.stat().st_size + other.stat().st_size
    start(model, INT4, PackedCache(place, sizes), TOKENS[:-1])
    assert one.exists() and not other.exists() and bystander.exists()
    caplog.clear()
    start(model, INT4, PackedCache(place, 1000), TOKENS[:-2])
    assert one.exists()
    assert "--packed-cache-size allows 0 MiB; raise it" in caplog.text


def test_some_of_a_volume_stays_free(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = PackedCache(tmp_path / "packed", EVERYTHING, left_free=1.0)
    assert start(native(folder), INT8, cache)[0] > 0
    assert held(cache) == []
    assert "100% of the volume stay so" in caplog.text


def test_nothing_goes_for_what_is_not_kept_then(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The folder is full, and the volume too: who makes room first loses both."""
    model, place = native(folder), tmp_path / "packed"
    start(model, INT8, PackedCache(place, EVERYTHING))
    [kept] = held(PackedCache(place, EVERYTHING))
    start(model, INT4, PackedCache(place, kept.stat().st_size, left_free=1.0))
    assert "100% of the volume stay so" in caplog.text
    assert held(PackedCache(place, EVERYTHING)) == [kept]


def test_a_process_without_another_thread_starts_all_the_same(
    folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root has no limit of threads; this is what Python raises at one."""
    run = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "packed-cache":
            raise RuntimeError("can't start new thread")
        run(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert start(native(folder), INT8, cache)[0] > 0
    assert f"packed weights are not kept in {cache.folder}: can't start new thread." in caplog.text


HEADERS = [b"no header", (1 << 62).to_bytes(8, "little"), b"\2" + bytes(7) + b"[]", b"\2" + bytes(7) + b"{}"]


@pytest.mark.parametrize("begin", HEADERS, ids=["text", "huge", "list", "empty"])
def test_another_file_in_the_models_place_is_said_once(
    begin: bytes, folder: Path, cache: PackedCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = packed_file.contents

    def late(*given: Any) -> Iterator[memoryview]:
        yield from contents(*given)
        other = folder / "other"
        other.write_bytes(begin)
        other.replace(folder / "model.safetensors")  # the start has the old one mapped

    monkeypatch.setattr(packed_file, "contents", late)
    assert start(native(folder), INT8, cache)[0] > 0
    [said] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert f"{folder / 'model.safetensors'} changed while it was read" in said
    assert held(cache) == []


def test_who_looks_at_a_part_is_not_taken_for_its_writer(folder: Path, cache: PackedCache) -> None:
    """Of two starts that look at what a crash left neither leaves the writing to the other."""
    model = native(folder)
    start(model, INT8, cache)
    [kept] = held(cache)
    part = kept.with_name(f"{kept.stem}.x.part")
    kept.rename(part)
    with part.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # as who looks has it
        assert start(model, INT8, cache)[0] > 0
    assert kept in held(cache)
