"""A repository on a model hub or a mirror of one, through its HTTP interface.

`GET /api/models/REPO/revision/REV` pins the commit, `…/tree/COMMIT` lists sizes and digests (SHA-256 of large files, git's SHA-1
of small ones), `/REPO/resolve/COMMIT/PATH` gives the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import httpx
from huggingface_hub import constants

from quire.errors import ModelError
from quire.fetch.remote import Digest, Get, RemoteFile
from quire.fetch.wanted import wanted


class Bearer(httpx.Auth):
    """`Authorization: Bearer TOKEN`."""

    def __init__(self, token: str) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        request.headers["Authorization"] = f"Bearer {self._token}"
        yield request


class Hub:
    """`hf://ORG/NAME`, or `hf://ORG/NAME/FILE.gguf` for one file."""

    def __init__(
        self, path: str, *, revision: str, endpoint: str | None, token: str | None, code: bool = False
    ) -> None:
        org, name, *file = path.split("/", 2)
        self.name = f"hf://{path}"
        self.auth: httpx.Auth | None = Bearer(token) if token else None
        self.direct: str | None = None
        self._repo = f"{org}/{name}"
        self._file = file[0] if file else None
        self._revision = revision
        self._base = (endpoint or constants.ENDPOINT).rstrip("/")
        self._token = token is not None
        self._code = code

    def files(self, get: Get) -> tuple[RemoteFile, ...]:
        repo = f"{self._base}/api/models/{self._repo}"
        try:
            commit = get(f"{repo}/revision/{quote(self._revision, safe='')}").json()["sha"]
            entries = {str(entry["path"]): entry for entry in self._tree(get, f"{repo}/tree/{commit}?recursive=true")}
        except (ValueError, KeyError, TypeError) as exc:
            raise ModelError(f"{self._base} does not answer as a model hub does; check the endpoint") from exc
        where = f"{self.name} (revision {self._revision})"
        if self._file is not None and self._file not in entries:
            raise ModelError(f"{where} has no file {self._file}")
        names = (self._file,) if self._file is not None else wanted(where, entries, code=self._code)
        return tuple(self._remote(commit, name, entries[name]) for name in names)

    def refusal(self, status: int) -> str:
        if status in (401, 403):
            if self._token:
                return "the token is not accepted, or has no access to this model: accept its terms on the hub, or use another token"
            return "the model is private, gated or not there: a token is needed (HF_TOKEN, spec.model.tokenSecretRef)"
        return f"check the name {self._repo} and the revision {self._revision}"

    def _tree(self, get: Get, url: str | None) -> Iterator[dict[str, object]]:
        while url is not None:
            answer = get(url)
            yield from (entry for entry in answer.json() if entry["type"] == "file")
            url = answer.links.get("next", {}).get("url")

    def _remote(self, commit: str, path: str, entry: dict[str, object]) -> RemoteFile:
        size, large = entry["size"], entry.get("lfs")
        assert isinstance(size, int)
        if isinstance(large, dict):
            digest = Digest("sha256", str(large["oid"]).removeprefix("sha256:"))
        else:
            digest = Digest("git", str(entry["oid"]))
        place = path.rpartition("/")[2] if self._file is not None else path  # one file is the whole folder
        return RemoteFile(place, f"{self._base}/{self._repo}/resolve/{commit}/{quote(path)}", size, digest)
