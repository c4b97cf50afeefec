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
    """An atomic copy: a reader sees the whole file or none."""
    if target.is_file() and target.stat().st_size == source.stat().st_size:
        return target
    if not target.parent.is_dir():
        raise ConfigError(f"--to must be a file in an existing folder, got {target}")
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
