"""The folder a model is fetched into: its lock, its room, and the mark that says it is whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from quire.errors import ModelError
from quire.fetch.mark import MARK, read_mark
from quire.fetch.remote import RemoteFile
from quire.fetch.transfer import PARTS, is_of, note_path, read_note

LOCK = ".quire-fetch.lock"
MARGIN_BYTES = 16 << 20
"""Left free on the volume: file systems get slow and engines need a little when the last block is taken."""


@dataclass(frozen=True)
class Store:
    """`identity` tells what belongs into the folder (source and revision); another one is not mixed into it."""

    folder: Path
    identity: Mapping[str, str | None]

    def complete(self) -> bool:
        """The mark is there, of this identity, and every file has the size it tells."""
        mark = self._read_mark()
        if mark is None:
            return False
        if mark.get("identity") != dict(self.identity):
            raise ModelError(
                f"{self.folder} holds {mark.get('identity')}, not {dict(self.identity)}: choose another folder or empty it"
            )
        return self.whole(mark)

    def whole(self, mark: Mapping[str, object]) -> bool:
        """Every file of the mark is there with its size."""
        files = mark.get("files")
        return isinstance(files, dict) and all(
            _size(self.folder / name) == each["size"] for name, each in files.items()
        )

    def missing(self, files: Sequence[RemoteFile]) -> tuple[RemoteFile, ...]:
        """Those that are not in place with their size, in this very version: in place is what was checked before."""
        return tuple(
            f
            for f in files
            if f.size is None
            or _size(self.folder / f.path) != f.size
            or not is_of(read_note(note_path(self.folder, f.path)), f)
        )

    def check_room(self, files: Sequence[RemoteFile]) -> None:
        """Raises ModelError with the sum before anything is downloaded."""
        parts = sum(_size(self.folder / PARTS / f"{f.path}.part") or 0 for f in files)
        self.check_bytes(sum(f.size or 0 for f in files) - parts)

    def check_bytes(self, needed: int) -> None:
        """Raises ModelError where `needed` bytes more do not fit."""
        free = shutil.disk_usage(self.folder).free
        if needed + MARGIN_BYTES > free:
            raise ModelError(
                f"{self.folder} has {_shown(free)} free, {_shown(needed)} more are needed (and {_shown(MARGIN_BYTES)} spare): "
                f"give it a larger volume (spec.model.cache.size)"
            )

    def finish(self, files: Sequence[RemoteFile], digests: Mapping[str, str | None]) -> None:
        """Throw away what came with an earlier version and is not of this one; write the mark, last of all."""
        for path in self._brought() - {f.path for f in files}:
            (self.folder / path).unlink(missing_ok=True)
        listed = {f.path: {"size": _size(self.folder / f.path), "sha256": digests.get(f.path)} for f in files}
        text = json.dumps({"identity": dict(self.identity), "files": listed}, indent=1)
        partial = self.folder / f"{MARK}.part"
        with partial.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        partial.chmod(0o644)
        partial.replace(self.folder / MARK)
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)

    def _brought(self) -> set[str]:
        """Paths that fetches before brought, whole or not."""
        notes, mark = self.folder / PARTS, self._read_mark() or {}
        whole = mark.get("files")
        begun = {note.relative_to(notes).as_posix().removesuffix(".json") for note in notes.rglob("*.json")}
        return begun | (set(whole) if isinstance(whole, dict) else set())

    def _read_mark(self) -> dict[str, object] | None:
        return read_mark(self.folder)

    @contextmanager
    def locked(self, say: Callable[[str], None]) -> Iterator[None]:
        """One fetch at a time per folder, also of several pods on one volume. Waits; a dead holder holds nothing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / LOCK).open("w")
        except OSError as exc:
            raise ModelError(f"cannot write to {self.folder}: {exc.strerror or exc}") from exc
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say(f"another fetch works in {self.folder}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as exc:
                if exc.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                say(f"{self.folder} knows no locks; nothing else must fetch into it now")
            yield


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _shown(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
