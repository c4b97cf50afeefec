"""A web server on loopback that keeps files, knows ranges and validators, and fails the way it is told to.

It plays a model hub (`/api/models/…`, `/…/resolve/…`) and a bucket (`/bucket/?list-type=2`, `/bucket/KEY`) over the same files.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from threaded_server import served

COMMIT = "c" * 40


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of, or to, its answer.

    status: this answer, with `headers`. cut: the connection breaks after so many bytes of the body. corrupt: the first byte is
    another. ranges: False answers a range with the whole file. sloppy: a range is answered with 200, and If-Range is not looked at, as
    some stores do that speak S3.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    corrupt: bool = False
    ranges: bool = True
    sloppy: bool = False


@dataclass
class Requested:
    """One request as it came in, and how many bytes of body it was given."""

    path: str
    headers: dict[str, str]
    sent: int = 0


@dataclass
class FaultyServer:
    """`faults[path]` are used up one a request; an empty list is no fault. Names of `files` have no leading slash."""

    files: dict[str, bytes]
    url: str = ""
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    requests: list[Requested] = field(default_factory=list)
    etags: bool = True
    commit: str = COMMIT
    large: int = 64
    """Bytes from which on the hub tells a SHA-256, as it does for files outside of git."""
    before: Callable[[str], None] = lambda path: None
    """Called with the path of each request before it is answered."""

    def asked(self, path: str) -> list[Requested]:
        return [each for each in self.requests if each.path == path]

    def tree(self) -> list[dict[str, object]]:
        out: list[dict[str, object]] = []
        for name, content in self.files.items():
            git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": git}
            if len(content) >= self.large:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
            out.append(entry)
        return [{"type": "directory", "path": "onnx", "size": 0, "oid": "0" * 40}, *out]

    def listing(self, prefix: str, after: str) -> bytes:
        """Two keys a page."""
        keys = sorted(key for key in self.files if key.startswith(prefix) and key > after)
        items = "".join(
            f'<Contents><Key>{key}</Key><Size>{len(self.files[key])}</Size><ETag>"{_md5(self.files[key])}"</ETag></Contents>'
            for key in keys[:2]
        )
        more = f"<NextContinuationToken>{keys[1]}</NextContinuationToken>" if len(keys) > 2 else ""
        head = '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        return f"{head}{items}{more}</ListBucketResult>".encode()


@contextmanager
def faulty_server(
    files: dict[str, bytes], *, certificate: tuple[Path, Path] | None = None, **options: object
) -> Iterator[FaultyServer]:
    """Serve `files` until the block ends; over TLS with a `certificate` (key and certificate, PEM files)."""
    server = FaultyServer(dict(files), **options)  # type: ignore[arg-type]
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate[1], certificate[0])
    with served(_handler(server), tls=context) as server.url:
        yield server


def _md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def _handler(server: FaultyServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            where = urlsplit(self.path)
            path, query = unquote(where.path), parse_qs(where.query)
            request = Requested(path, {name.lower(): value for name, value in self.headers.items()})
            server.requests.append(request)
            server.before(path)
            waiting = server.faults.get(path)
            fault = waiting.pop(0) if waiting else Fault()
            if fault.status is not None:
                self._send(request, fault.status, b"{}", fault.headers, fault)
            elif path.startswith("/api/models/org/name/revision/"):
                self._send(request, 200, json.dumps({"sha": server.commit}).encode(), {}, fault)
            elif path == f"/api/models/org/name/tree/{server.commit}":
                self._tree(request, query, fault)
            elif path == "/bucket/":
                page = server.listing(query["prefix"][0], query.get("continuation-token", [""])[0])
                self._send(request, 200, page, {}, fault)
            else:
                name = (
                    path.removeprefix(f"/org/name/resolve/{server.commit}/").removeprefix("/bucket/").removeprefix("/")
                )
                self._file(request, server.files.get(name), fault)

        def _tree(self, request: Requested, query: dict[str, list[str]], fault: Fault) -> None:
            whole, half = server.tree(), len(server.tree()) // 2
            if "cursor" in query:
                self._send(request, 200, json.dumps(whole[half:]).encode(), {}, fault)
                return
            link = f'<{server.url}/api/models/org/name/tree/{server.commit}?recursive=true&cursor=1>; rel="next"'
            self._send(request, 200, json.dumps(whole[:half]).encode(), {"Link": link}, fault)

        def _file(self, request: Requested, content: bytes | None, fault: Fault) -> None:
            if content is None:
                self._send(request, 404, b"{}", {}, fault)
                return
            headers = {"ETag": f'"{_md5(content)}"'} if server.etags else {}
            wanted = self.headers.get("Range")
            validator = self.headers.get("If-Range")
            stale = validator is not None and validator != headers.get("ETag") and not fault.sloppy
            if wanted is None or not fault.ranges or stale:
                self._send(request, 200, content, headers, fault)
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self._send(request, 416, b"", {"Content-Range": f"bytes */{len(content)}"}, fault)
                return
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self._send(request, 200 if fault.sloppy else 206, content[start:], headers, fault)

        def _send(self, request: Requested, status: int, body: bytes, headers: dict[str, str], fault: Fault) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if fault.corrupt:
                body = bytes([body[0] ^ 1]) + body[1:]
            out = body if fault.cut is None else body[: fault.cut]
            self.wfile.write(out)
            request.sent = len(out)
            if fault.cut is not None:
                self.wfile.flush()
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    return Handler
