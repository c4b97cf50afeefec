"""`quire pull`: a bundled model into the cache, and a copy elsewhere if asked for."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from quire.errors import ConfigError, ModelError
from quire.models import bundled


def run(name: str, to: Path | None) -> None:
    """Idempotent; raises ModelError or ConfigError."""
    path = bundled.pull(name, say=lambda line: print(line, flush=True))
    if to is not None:
        path = _copy(path, to / path.name if to.is_dir() else to)
    print(path)


def _copy(source: Path, target: Path) -> Path:
    """An atomic copy: a reader sees the whole model or none."""
    if not target.parent.is_dir():
        raise ConfigError(f"--to must be a file in an existing folder, got {target}")
    if source.is_dir():
        return _copy_folder(source, target)
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return target
    descriptor, partial = tempfile.mkstemp(prefix=".pull-", dir=target.parent)
    os.close(descriptor)
    try:
        shutil.copyfile(source, partial)
        os.chmod(partial, 0o644)
        os.replace(partial, target)
    except OSError as exc:
        Path(partial).unlink(missing_ok=True)
        raise ModelError(f"cannot write {target}: {exc.strerror or exc}") from exc
    return target


def _copy_folder(source: Path, target: Path) -> Path:
    """The same of a folder; one that is there already stays."""
    if target.is_dir():
        return target
    try:
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as partial:
            shutil.copytree(source, Path(partial) / "copy").rename(target)
    except OSError as exc:
        raise ModelError(f"cannot write {target}: {exc.strerror or exc}") from exc
    return target
