"""What the sources have in common: a file with an address, and somebody who lists such files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

import httpx

from quire.errors import ModelError


@dataclass(frozen=True)
class Digest:
    """What a file's content must hash to. `git` is the SHA-1 of a git blob, as hubs have it for small files."""

    kind: Literal["sha256", "git"]
    value: str

    def hasher(self, size: int) -> hashlib._Hash:
        """Empty, to be fed with the content; `size` is the file's."""
        if self.kind == "sha256":
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


@dataclass(frozen=True)
class RemoteFile:
    """`path` is below the target folder, with forward slashes; `size` in bytes, None where only the answer will tell.

    `tag` is the source's own mark of the content, where it has one."""

    path: str
    url: str
    size: int | None = None
    digest: Digest | None = None
    tag: str | None = None

    @property
    def version(self) -> str | None:
        """Tells one content at this address from another; None where nothing does before it is fetched."""
        return self.digest.value if self.digest is not None else self.tag

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        if not self.path or self.path.startswith(("/", ".")) or ".." in parts or "\\" in self.path or "\0" in self.path:
            raise ModelError(f"the source offers a file called {self.path!r}, which is no plain relative path: refused")


class Source(Protocol):
    """One place that models come from. `auth` signs its requests; httpx drops it when a redirect leaves the host. `direct`: host and port that
    are asked without a proxy, whatever the environment says."""

    name: str
    auth: httpx.Auth | None
    direct: str | None

    def files(self, get: Get) -> tuple[RemoteFile, ...]:
        """What is to be downloaded. Raises ModelError where that cannot be served."""

    def refusal(self, status: int) -> str:
        """What would help against a 401, 403 or 404."""


class Get(Protocol):
    """One small request with retries; the answer has a status below 400, and its body is read."""

    def __call__(self, url: str) -> httpx.Response: ...
