"""A small docker-archive, as engines write it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            out.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _write_archive(
    path: Path, layers: list[dict[str, bytes]], pack: Callable[[bytes], bytes] = lambda layer: layer
) -> Path:
    names = [f"{number}.tar" for number, _ in enumerate(layers)]
    manifest = [{"Config": "config.json", "RepoTags": ["docker.io/quire/x:1"], "Layers": names}]
    files = {"config.json": json.dumps({"config": {"User": "1"}, "history": []}).encode()}
    files |= {name: pack(_tar(layer)) for name, layer in zip(names, layers, strict=True)}
    path.write_bytes(_tar(files | {"manifest.json": json.dumps(manifest).encode()}))
    return path


@pytest.fixture
def write_archive() -> Callable[..., Path]:
    """Write an archive of one image: its layers bottom to top, each a mapping from path to content. `pack` compresses one."""
    return _write_archive
