"""One file at an https:// address."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import httpx

from quire.errors import ConfigError
from quire.fetch.hub import Bearer
from quire.fetch.remote import Digest, Get, RemoteFile

TOKEN = "QUIRE_FETCH_TOKEN"
"""The variable with the token for an address. It is not HF_TOKEN: who has that one set gives it to no other host."""


class Web:
    """A .gguf file, whose SHA-256 is checked where it is given."""

    def __init__(self, url: str, *, sha256: str | None, token: str | None) -> None:
        path = urlsplit(url).path
        if not path.endswith(".gguf"):
            raise ConfigError(f"an http source must name a .gguf file, which is a whole model, got {url}")
        self.name = url
        self.auth: httpx.Auth | None = Bearer(token) if token else None
        self.direct: str | None = None
        self._file = RemoteFile(
            unquote(path.rpartition("/")[2]), url, digest=Digest("sha256", sha256) if sha256 else None
        )

    def files(self, get: Get) -> tuple[RemoteFile, ...]:
        return (self._file,)

    def refusal(self, status: int) -> str:
        return (
            f"a token may be needed ({TOKEN}, spec.model.tokenSecretRef)"
            if status in (401, 403)
            else "check the address"
        )
