"""The pods' side of a request: the connection pool, one attempt to get an answer, and what a failed attempt means.

Called by `proxy`. An AttemptError always means that the client has seen nothing yet; whether another pod is asked is
`proxy`'s decision. No policy and no state here.
"""

from __future__ import annotations

import asyncio
import io
import json
import socket
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from quire_router import headers
from quire_router.settings import Settings

RETRY_AFTER_S = 1
"""Hint for the client where a pod answered 503 without one, or could not be reached."""
FINAL_CODES = frozenset({"queue_timeout", "try_again"})
"""Error codes of a 503 after which another pod is not asked: the client has waited its turn in a queue already, or a part of the answer
was computed and lost. There the request itself may be what went wrong, and would on each pod in turn: its process was killed twice, or it
grew more than all others. Whether all that is computed again is the client's to say, for whom `Retry-After` is there."""
BUSY = frozenset({503})
"""Answers after which another pod may do better."""
NOT_THERE_YET = BUSY | {404}
"""The same where an adapter is asked for: a pod that is new to it, or that was started again, answers as to an unknown model until it has it."""
MAX_REFUSAL_BYTES = 64 * 1024
REFUSAL_TIMEOUT_S = 5.0
KEEPALIVE_S = 4.0
"""Below the shortest idle time-out of common servers (5 s), so that a pooled connection is not closed while being used."""
DEAD_S = 10
"""A host whose kernel has acknowledged nothing for so long is gone, and what waits for it fails: a request that went out on a pooled
connection asks another pod, a stream ends with an error. Kubernetes needs some 40 s to find out."""

Reason = Literal["connect", "reset", "unavailable", "missing"]


@dataclass(eq=False)
class AttemptError(Exception):
    """One endpoint gave no usable answer. `answer` is its own refusal; `final` says that no other pod should be asked."""

    reason: Reason
    detail: str
    answer: web.Response | None = None
    final: bool = False


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """The connection pool to the pods: no cookies, no proxy, no limit but theirs, no deadline after connecting.

    A generation may take minutes, so silence is no fault; a dead host is found by what TCP hears of it instead (DEAD_S).
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, socket_factory=_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        auto_decompress=False,
        trust_env=False,
    )


def _socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    sock = socket.socket(family, kind, protocol)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": DEAD_S // 2,
        "TCP_KEEPINTVL": DEAD_S // 5,
        "TCP_KEEPCNT": 2,
        "TCP_USER_TIMEOUT": DEAD_S * 1000,
    }
    for option, value in options.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


async def send(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    *,
    body: bytes,
    upstream_headers: CIMultiDict[str],
    refusals: frozenset[int] = BUSY,
) -> aiohttp.ClientResponse:
    """Send the request and wait for the headers of the answer, whose status is none of `refusals`; the caller closes it."""
    try:
        upstream = await session.request(
            method, url, data=io.BytesIO(body), headers=upstream_headers, allow_redirects=False
        )
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise AttemptError("connect", str(error) or "no connection") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise AttemptError("reset", str(error) or "closed before an answer") from error
    if upstream.status not in refusals:
        return upstream
    try:
        raise await _refused(upstream)
    finally:
        upstream.close()


async def _refused(upstream: aiohttp.ClientResponse) -> AttemptError:
    """A refusal before the first byte. The answer is kept for the case that no other endpoint does better."""
    try:
        async with asyncio.timeout(REFUSAL_TIMEOUT_S):
            body = await upstream.content.readexactly(MAX_REFUSAL_BYTES)
    except asyncio.IncompleteReadError as error:
        body = error.partial  # the whole of it, as it nearly always is
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        return AttemptError("reset", str(error) or f"closed or stuck within its {upstream.status}")
    kept = headers.to_client(upstream.headers)
    kept.popall("Content-Length", None)
    code, message = _error_of(body)
    answer = web.Response(status=upstream.status, headers=kept, body=body)
    if upstream.status != 503:
        return AttemptError("missing", message, answer)
    answer.headers.setdefault("Retry-After", str(RETRY_AFTER_S))
    return AttemptError("unavailable", message, answer, final=code in FINAL_CODES)


def _error_of(body: bytes) -> tuple[str | None, str]:
    """Code and message of an OpenAI error body, as far as there are any."""
    try:
        error = json.loads(body)["error"]
        return error.get("code"), str(error.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "an answer without an OpenAI error"
