"""The outermost layer: request id, key check, limits of the key and of bodies, access log, and the last net for exceptions.

Plain ASGI, because streams and disconnects must pass through untouched. Never logged: bodies, prompts, keys, query
strings.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from quire import logs
from quire.errors import RequestError
from quire.server.auth.guard import Guard
from quire.server.auth.keys import EVERYBODY, Principal
from quire.server.auth.rates import Lease, Refusal, headers_of
from quire.server.edge import access
from quire.server.edge.access import Finished
from quire.server.errors import ClientGoneError, body, describe, told_at
from quire.server.flight.room import BODIES, Hold, Room
from quire.server.flight.work import Work

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
CLIENT_GONE = 499
_POLLED = frozenset({"/load"})
"""Asked all the time, by load balancers and by the page: like probes they would fill the log."""
LINGER_S = 2.0

_UNKNOWN = (
    body(401, "a valid key is needed: send Authorization: Bearer KEY, or x-api-key: KEY", code="invalid_api_key"),
    {"WWW-Authenticate": "Bearer"},
)


class Edge:
    """See the module. max_body_size is in bytes. dropped: counts a request that was refused, by reason. trace: told of each
    request that is over."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        guard: Guard,
        max_body_size: int,
        dropped: Callable[[str], None],
        trace: Callable[[Finished], None] | None = None,
    ) -> None:
        self._app = app
        self._guard = guard
        self._max_body_size = max_body_size
        self._room = Room(BODIES * max_body_size, dropped=dropped)
        self._dropped = dropped
        self._trace = trace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        open_path = scope["path"] in self._guard.open_paths
        exchange = _Exchange(scope, headers, receive, send)
        scope.setdefault("state", {})["request_id"] = exchange.request_id
        logs.request_id.set(exchange.request_id)  # each request has a task, and so a context, of its own
        lease: Lease | None = None
        hold = scope["state"]["hold"] = self._room.hold()
        try:
            if not open_path:
                principal = await self._guard.principal(headers)
                if principal is None:
                    await exchange.answer(401, *_UNKNOWN)
                    return
                exchange.principal = principal.name
                if scope["method"] == "POST":
                    admitted = self._guard.begin(principal)
                    if isinstance(admitted, Refusal):
                        await self._refuse(exchange, principal, admitted)
                        return
                    lease = admitted
                    lease.spent = exchange.num_tokens
                    exchange.headers = headers_of(lease.meters)
            await self._app(scope, self._limited(exchange, headers, receive, hold), exchange.send)
        except (ClientGoneError, ClientDisconnect):
            exchange.status = CLIENT_GONE
        except Exception as exc:  # noqa: BLE001  (the last net: told to the client and logged)
            status, content, extra = describe(exc, exchange.request_id)
            if not exchange.started:
                await exchange.answer(status, content, extra)
        finally:
            hold.end()
            if lease is not None:
                self._guard.end(lease)
            finished = exchange.finished()
            access.record(finished, quiet=open_path or scope["path"] in _POLLED)
            if self._trace is not None:
                self._trace(finished)

    async def _refuse(self, exchange: _Exchange, principal: Principal, refusal: Refusal) -> None:
        self._dropped("rate_limit")
        content = body(429, refusal.message, code="rate_limit_exceeded")
        headers = {"retry-after": str(refusal.retry_after_s), **self._guard.headers(principal)}
        await exchange.answer(429, content, headers)

    def _limited(self, exchange: _Exchange, headers: Headers, receive: Receive, hold: Hold) -> Receive:
        """`receive` that refuses a body over the limit, or one that there is no room for, by its announced length or as soon as too much has
        come."""
        length = headers.get("content-length", "")
        announced = int(length) if length.isdecimal() else 0
        came = 0

        async def limited() -> Message:
            nonlocal came
            if announced > self._max_body_size:
                raise self._too_large()
            if came == 0:
                hold.expect(announced)
            message = await receive()
            exchange.unread = exchange.unread and message.get("more_body", False)
            if part := message.get("body", b""):
                came += len(part)
                if came > self._max_body_size:
                    hold.end()
                    raise self._too_large()
                hold.take(came)
            return message

        return limited

    def _too_large(self) -> RequestError:
        return RequestError(
            f"the body is larger than {self._max_body_size} bytes (--max-body-size)", code="body_too_large", status=413
        )


class _Exchange:
    """One request and what was answered. unread: there is a body, and not all of it has come."""

    def __init__(self, scope: Scope, request: Headers, receive: Receive, send: Send) -> None:
        self.request_id = _request_id(request)
        self.unread = "transfer-encoding" in request or request.get("content-length", "0") != "0"
        self._closes = "close" in request.get("connection", "").lower() or scope["http_version"] == "1.0"
        self.status = 0
        self.started = False
        self.headers: Mapping[str, str] = {}
        self.principal = ""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._begin_s = time.monotonic()
        self._begin_ns = time.time_ns()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.request_id
            headers.update(self.headers)
            if self.status == 413:
                headers["connection"] = "close"
        elif (self.status == 413 or (self._closes and self.unread)) and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _linger(self) -> None:
        """Throw away what still arrives of a body that is not read, for a while: closing at once would reset the
        connection, and the client, still writing, would never see the answer. Where it stays open it is thrown away anyhow."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await self._receive()).get("more_body", False):
                    pass

    async def answer(self, status: int, content: dict[str, object], extra: dict[str, str]) -> None:
        data = json.dumps(told_at(self._scope["path"], content, self.request_id)).encode()
        headers = {"content-type": "application/json", "content-length": str(len(data)), **extra}
        raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})
        await self.send({"type": "http.response.body", "body": data})

    def num_tokens(self) -> int:
        """Tokens that were computed for it so far, prompt and answer."""
        job = self._scope["state"].get("job")
        return job.num_tokens if isinstance(job, Work) else 0

    def finished(self) -> Finished:
        """What there is to say of it at the end."""
        job = self._scope["state"].get("job")
        return Finished(
            method=self._scope["method"],
            path=self._scope["path"],
            status=self.status,
            begin_ns=self._begin_ns,
            duration_s=time.monotonic() - self._begin_s,
            request_id=self.request_id,
            headers=Headers(scope=self._scope),
            key="" if self.principal == EVERYBODY else self.principal,
            job=job if isinstance(job, Work) else None,
        )


def _request_id(headers: Headers) -> str:
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
