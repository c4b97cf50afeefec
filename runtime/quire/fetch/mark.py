"""What a fetch writes last into a folder: that it is whole, and the digests it checked. Light, for the engine reads it too."""

from __future__ import annotations

import json
from pathlib import Path

MARK = ".quire-complete.json"


def read_mark(folder: Path) -> dict[str, object] | None:
    """What was written when the folder was whole, None where it is not."""
    try:
        mark = json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return None
    return mark if isinstance(mark, dict) else None


def checked_digest(path: Path) -> str | None:
    """SHA-256 of a file that a fetch checked and that nobody has touched since; None where that is not known."""
    mark = read_mark(path.parent)
    files = mark.get("files") if mark is not None else None
    told = files.get(path.name) if isinstance(files, dict) else None
    digest = told.get("sha256") if isinstance(told, dict) else None
    if not isinstance(told, dict) or not isinstance(digest, str):
        return None
    found, written = path.stat(), (path.parent / MARK).stat()
    untouched = found.st_mtime_ns <= written.st_mtime_ns and found.st_size == told.get("size")
    return digest if untouched else None
