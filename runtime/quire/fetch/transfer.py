"""One file, until it is there: resumed after a break, checked against its size and digest, then renamed into place.

What has arrived lies in `.quire-fetch/PATH.part`; `PATH.json` beside it remembers the address (of a hub: with the commit) and the
validator of the answer, so that neither a file nor a folder is ever stitched together from two versions. Whoever calls holds the folder's lock.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx

from quire.errors import ModelError
from quire.fetch.remote import RemoteFile, Source
from quire.fetch.retry import Patience, TransientError, checked

CHUNK = 1 << 20
PARTS = ".quire-fetch"
PROGRESS_BYTES = 1 << 20
"""A connection that breaks after at least this much is opened again at once; after less it costs an attempt."""
MISMATCHES = 2
"""Whole downloads with a wrong digest before it is given up: a broken proxy is not mended by trying."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Transfer:
    """`gained(n)` is told of every `n` bytes that are there to stay, negative where some are thrown away.

    `check_room(n)` is asked where only the answer tells the size; it raises what ends the transfer.
    """

    def __init__(
        self,
        client: httpx.Client,
        source: Source,
        file: RemoteFile,
        folder: Path,
        *,
        patience: Patience,
        gained: Callable[[int], None],
        check_room: Callable[[int], None],
    ) -> None:
        self._client = client
        self._source = source
        self._file = file
        self._target = folder / file.path
        self._part = folder / PARTS / f"{file.path}.part"
        self._note = note_path(folder, file.path)
        self._patience = patience
        self._gained = gained
        self._check_room = check_room
        self._size = file.size
        self._have = 0
        self._hash: hashlib._Hash | None = None
        self._validator: str | None = None

    def run(self) -> str | None:
        """The SHA-256 of the file, None where its content was not hashed so. Raises ModelError."""
        try:
            self._prepare()
            mismatches = 0
            while True:
                while self._size is None or self._have < self._size:
                    self._patience(self._file.path, self._advance)
                if self._matches():
                    return self._finish()
                mismatches += 1
                self._patience.say(
                    f"{self._file.path}: the content does not have the expected digest; once more from the start"
                )
                self._restart()
                if mismatches == MISMATCHES:
                    raise ModelError(
                        f"{self._file.path}: the content does not have the digest that {self._source.name} tells, "
                        f"{mismatches} times in a row; a proxy or mirror serves something else"
                    )
        except OSError as exc:
            if exc.errno in _NO_ROOM:
                raise ModelError(
                    f"{self._file.path}: no room left in {self._target.parent}; give it a larger volume (spec.model.cache.size)"
                ) from exc
            raise ModelError(
                f"{self._file.path}: cannot write below {self._target.parent}: {exc.strerror or exc}"
            ) from exc

    def _prepare(self) -> None:
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._hash = self._hasher()
        if not self._part.exists():
            return
        note = read_note(self._note)
        self._validator = note.get("validator")
        if not is_of(note, self._file) or (self._file.digest is None and self._validator is None):
            self._part.unlink()  # of another version, or nothing would prove that the rest belongs to it
            self._validator = None
            return
        with self._part.open("rb") as part:
            while chunk := part.read(CHUNK):
                self._took(chunk)
        if self._size is not None and self._have > self._size:
            self._restart()

    def _advance(self) -> None:
        """One request. Returns when it brought something, raises TransientError when it did not."""
        if self._have and self._validator is None and self._file.digest is None:
            self._restart()  # nothing would prove that the rest belongs to it
        before = self._have
        headers = {"Accept-Encoding": "identity"}
        if self._have:
            headers["Range"] = f"bytes={self._have}-"
            if self._validator is not None:
                headers["If-Range"] = self._validator
        try:
            with self._client.stream("GET", self._file.url, headers=headers) as response:
                if response.status_code == 416:
                    self._restart()
                    raise TransientError("the file is shorter than what is here of it")
                checked(response, self._source.refusal)
                self._receive(response)
        except httpx.InvalidURL as exc:
            raise ModelError(f"{self._file.path}: {self._file.url} is no address: {exc}") from exc
        except httpx.HTTPError as exc:
            if self._have - before < PROGRESS_BYTES:
                raise TransientError(_why(exc)) from exc
            self._patience.say(f"{self._file.path}: {_why(exc)} at byte {self._have}; going on from there")
            return
        if self._size is None:
            self._size = self._have
        if self._have < self._size and self._have - before < PROGRESS_BYTES:
            raise TransientError(f"the answer ended at byte {self._have} of {self._size}")

    def _receive(self, response: httpx.Response) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ModelError(f"{self._file.path}: {response.url.host} sends it compressed although it was asked not to")
        total = self._begin(response)
        if self._size is None:
            self._check_room((total or 0) - self._have)
            self._size = total
        elif total is not None and total != self._size:
            raise ModelError(
                f"{self._file.path} has {total} bytes at {response.url.host}, {self._source.name} tells {self._size}: "
                "the one or the other is out of date"
            )
        with self._part.open("ab") as part:
            for chunk in response.iter_raw():  # as they come: what a break cuts off is little
                if self._size is not None and self._have + len(chunk) > self._size:
                    raise ModelError(
                        f"{self._file.path}: {response.url.host} sends more than the {self._size} bytes it has"
                    )
                part.write(chunk)
                self._took(chunk)

    def _begin(self, response: httpx.Response) -> int | None:
        """Where the answer's bytes belong; the whole file's size, if the answer tells it."""
        if response.status_code == 206 or "Content-Range" in response.headers:  # some stores answer a range with 200
            return self._go_on(response)
        if self._have:
            self._restart()  # the whole file comes: it changed, or the server knows no ranges
        self._size = self._file.size
        self._validator = _validator(response)
        self._remember()
        length = response.headers.get("Content-Length", "")
        return int(length) if length.isdigit() else None

    def _go_on(self, response: httpx.Response) -> int | None:
        """The answer is a part: the one asked for, of the same version. Some stores do not look at If-Range, so it is compared here."""
        unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
        span, _, total = rest.partition("/")
        now = _validator(response)
        changed = self._validator is not None and now is not None and now != self._validator
        if unit != "bytes" or not span.startswith(f"{self._have}-") or changed:
            self._restart()
            raise TransientError(
                "the file changed" if changed else "the server sent another part than the one asked for"
            )
        return int(total) if total.isdigit() else None

    def _took(self, chunk: bytes) -> None:
        assert self._hash is not None
        self._hash.update(chunk)
        self._have += len(chunk)
        self._gained(len(chunk))

    def _restart(self) -> None:
        self._part.unlink(missing_ok=True)
        self._gained(-self._have)
        self._have, self._hash, self._validator = 0, self._hasher(), None

    def _hasher(self) -> hashlib._Hash:
        digest = self._file.digest
        return hashlib.sha256() if digest is None else digest.hasher(self._file.size or 0)

    def _matches(self) -> bool:
        assert self._hash is not None
        return self._file.digest is None or self._hash.hexdigest() == self._file.digest.value

    def _finish(self) -> str | None:
        if not self._part.exists():  # an empty file
            self._part.touch()
        with self._part.open("rb") as part:
            os.fsync(part.fileno())
        self._part.chmod(0o644)
        self._part.replace(self._target)
        self._remember()
        assert self._hash is not None
        return self._hash.hexdigest() if self._hash.name == "sha256" else None

    def _remember(self) -> None:
        self._note.write_text(
            json.dumps({"url": self._file.url, "version": self._file.version, "validator": self._validator})
        )


def note_path(folder: Path, path: str) -> Path:
    """Where it is remembered which version of a file is here, whole or in part."""
    return folder / PARTS / f"{path}.json"


def read_note(path: Path) -> dict[str, str | None]:
    """`url`, `version` and `validator`; empty where there is none."""
    try:
        note = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def is_of(note: Mapping[str, str | None], file: RemoteFile) -> bool:
    """Whether what is here came from this address and has this version."""
    return note.get("url") == file.url and note.get("version") == file.version


def _validator(response: httpx.Response) -> str | None:
    """What If-Range may carry: a strong entity tag, else the date of the last change."""
    tag: str = response.headers.get("ETag", "")
    if tag.startswith('"'):
        return tag
    modified: str | None = response.headers.get("Last-Modified")
    return modified


def _why(exc: httpx.HTTPError) -> str:
    text = str(exc).strip()
    return f"the connection broke ({text or type(exc).__name__})"
