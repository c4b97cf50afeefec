"""The web page at `/`: a chat with the model, its settings, and what the engine is doing.

The files of `static/` are sent as they lie there: nothing is built, nothing comes from elsewhere. They hold no secret and need no key, for
the page is where a person types theirs; what it then asks of the server needs the key as from any client. The policy in the headers lets
a browser run these files and talk to this origin, nothing else, and makes HTML out of text an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

STATIC = Path(__file__).parent / "static"
_INDEX = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)
HEADERS = {
    "content-security-policy": "; ".join(_POLICY),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # asked for each time, sent when it changed
}


@dataclass(frozen=True)
class File:
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, File]:
    """The page's files by path."""
    return {
        "/" if path.name == _INDEX else f"/page/{path.name}": _read(path)
        for path in sorted(STATIC.iterdir())
        if path.suffix in _TYPES
    }


def router(files: Mapping[str, File]) -> APIRouter:
    """A route for each."""
    routes = APIRouter()
    for path, file in files.items():
        routes.add_api_route(path, _sender(file), methods=["GET", "HEAD"], include_in_schema=False)
    return routes


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, _TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


def _sender(file: File) -> Callable[[Request], Awaitable[Response]]:
    headers = {**HEADERS, "etag": file.etag}

    async def send(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
        if file.etag in known:
            return Response(status_code=304, headers=headers)
        return Response(file.content, headers=headers, media_type=file.media_type)

    return send
