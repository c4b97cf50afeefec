"""What is in a docker-archive: its configuration, its layers, and the files that a container would see. Reads, never writes.

The file knows nothing of engines, so a size or a leak is checked on exactly what the cluster loads.
"""

import gzip
import json
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from cluster.errors import UsageError

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
GZIP, ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
"""How compressed layers begin. Docker's containerd store saves them as they were pulled or built."""


@dataclass(frozen=True)
class Entry:
    """One file of a layer."""

    path: str
    """Without a leading slash."""
    size: int
    mode: int
    uid: int
    is_file: bool


@dataclass(frozen=True)
class Contents:
    """One image of an archive."""

    config: dict[str, Any]
    layers: tuple[tuple[Entry, ...], ...]
    """Bottom to top, as stored, whiteouts included."""

    @property
    def layer_bytes(self) -> tuple[int, ...]:
        """Bytes of files per layer."""
        return tuple(sum(entry.size for entry in layer) for layer in self.layers)

    @property
    def unpacked_bytes(self) -> int:
        """Bytes on disk once unpacked: every layer's files, whether a later layer hides them or not."""
        return sum(self.layer_bytes)

    def files(self) -> dict[str, Entry]:
        """What a container sees, by path."""
        seen: dict[str, Entry] = {}
        for layer in self.layers:
            for entry in layer:
                folder, _, name = entry.path.rpartition("/")
                if name == OPAQUE:
                    _drop(seen, folder, itself=False)
                elif name.startswith(WHITEOUT):
                    _drop(seen, f"{folder}/{name.removeprefix(WHITEOUT)}".lstrip("/"), itself=True)
                else:
                    seen[entry.path] = entry
        return {path: entry for path, entry in seen.items() if entry.is_file}


def read(archive: Path) -> Contents:
    """Read names and sizes. Raises UsageError where the archive does not hold exactly one image."""
    with _opened(archive) as tar:
        manifest = _manifest(tar, archive)
        config = json.loads(_bytes(tar, manifest["Config"]))
        layers = tuple(tuple(_entries(tar, name)) for name in manifest["Layers"])
    return Contents(config, layers)


def chunks(archive: Path, size: int = 1 << 20) -> Iterator[bytes]:
    """The configuration and every layer as plain bytes, each piece with the end of the one before, so that no match is cut."""
    overlap = 4096
    with _opened(archive) as tar:
        manifest = _manifest(tar, archive)
        yield _bytes(tar, "manifest.json")
        yield _bytes(tar, manifest["Config"])
        for name in manifest["Layers"]:
            before = b""
            with _layer(tar, name) as file:
                while piece := file.read(size):
                    yield before + piece
                    before = piece[-overlap:]


def layers(archive: Path) -> Iterator[IO[bytes]]:
    """Every layer, bottom to top, as a plain tar to read before the next."""
    with _opened(archive) as tar:
        for name in _manifest(tar, archive)["Layers"]:
            with _layer(tar, name) as file:
                yield file


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive, "r:") as tar:
            yield tar
    except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
        raise UsageError(f"image archive {archive} cannot be read: {error}; delete it and build again") from error


def _manifest(tar: tarfile.TarFile, archive: Path) -> dict[str, Any]:
    images: list[dict[str, Any]] = json.loads(_bytes(tar, "manifest.json"))
    if len(images) != 1:
        raise UsageError(f"{archive} holds {len(images)} images instead of one")
    return images[0]


def _entries(tar: tarfile.TarFile, layer: str) -> Iterator[Entry]:
    with _layer(tar, layer) as file, tarfile.open(fileobj=file, mode="r:") as inner:
        for member in inner:
            path = member.name.removeprefix("./").strip("/")
            if path and path != ".":
                yield Entry(path, member.size if member.isreg() else 0, member.mode, member.uid, not member.isdir())


@contextmanager
def _layer(tar: tarfile.TarFile, name: str) -> Iterator[IO[bytes]]:
    """A layer's own tar, decompressed where it is compressed."""
    with _file(tar, name) as file:
        start = file.read(4)
        file.seek(0)
        if start == ZSTD:
            raise ValueError(f"its layer {name} is compressed with zstd")
        if start.startswith(GZIP):
            with gzip.open(file) as plain:
                yield cast(IO[bytes], plain)
        else:
            yield file


def _file(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)  # follows links inside the archive
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file


def _bytes(tar: tarfile.TarFile, name: str) -> bytes:
    with _file(tar, name) as file:
        return file.read()


def _drop(seen: dict[str, Entry], path: str, *, itself: bool) -> None:
    for other in [key for key in seen if key.startswith(f"{path}/") or (itself and key == path)]:
        del seen[other]
