"""One request from client to pod and back: choose, forward, retry before the first byte, stream after it.

Called by `app` for each routed POST. The body is read whole (bounded) and can be sent again; the answer is never
gathered: each piece goes to the client before the next is read, so a slow client slows the pod and nothing else.
A client that leaves cancels the handler, which closes the connection to the pod at once.

Until the client has got a byte, an endpoint that cannot be reached, breaks off or answers 503 is replaced by another
one. A request that was already sent is sent again only once: should it be what kills the pods, it kills few.
Nothing here knows Kubernetes, or what is in the body besides `model`.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from quire_router import headers
from quire_router.body import model_of, rename
from quire_router.choose import LoadTable, Policy, choose
from quire_router.drain import Drain
from quire_router.endpoints import Endpoint, EndpointState
from quire_router.errors import (
    InternalError,
    NotFoundError,
    RouterError,
    SlowBodyError,
    TooLargeError,
    UnavailableError,
)
from quire_router.metrics import Metrics
from quire_router.registry import Registry, Route
from quire_router.settings import Settings
from quire_router.sse import EventCutter, error_event

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
NO_ENDPOINT_RETRY_S = 5
FAILED_RETRY_S = 1
MAX_SENT_AGAIN = 1
MAX_UNAVAILABLE_BODY = 64 * 1024
UNAVAILABLE_BODY_S = 5.0
BODY_SILENCE_S = 60.0
"""A client that sends nothing of its body for this long gets 408."""
CLIENT_STALL_S = 300.0
"""A client that takes nothing of its answer for this long counts as gone."""
FINAL_CODES = frozenset({"queue_timeout"})
"""Error codes of a 503 after which another pod is not asked: the client has waited its turn in a queue already."""
CLIENT_LEFT = 499
# Below the shortest idle time-out of common servers (5 s), so that a pooled connection is not closed while being used.
KEEPALIVE_S = 4.0


@dataclass(eq=False)
class _AttemptError(Exception):
    """One endpoint gave no usable answer and the client has seen nothing yet."""

    reason: str  # a label of quire_router_retries: connect, reset, unavailable
    detail: str
    answer: web.Response | None = None
    final: bool = False


class _ClientLeft(Exception):
    """The client closed its connection while the answer was being written."""


@dataclass(slots=True)
class _Record:
    """What the metrics and the log say about one request."""

    model: str = ""
    code: int = 0


def open_session(settings: Settings) -> aiohttp.ClientSession:
    """The connection pool to the pods: no cookies, no proxy, no limit but theirs, no deadline after connecting.

    A generation may take minutes, so silence is no fault; a dead host is found by TCP keep-alive instead (30 s).
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
    for option, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


class Proxy:
    """Forwards requests to endpoints of the registry."""

    def __init__(
        self,
        registry: Registry,
        load: LoadTable,
        policy: Policy,
        session: aiohttp.ClientSession,
        metrics: Metrics,
        drain: Drain,
        settings: Settings,
        *,
        synced: Callable[[], bool],
    ) -> None:
        self._registry = registry
        self._load = load
        self._policy = policy
        self._session = session
        self._metrics = metrics
        self._drain = drain
        self._settings = settings
        self._synced = synced

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request; raise RouterError for what the router itself refuses."""
        record, started_s = _Record(), time.monotonic()
        with self._drain.request():
            try:
                response = await self._serve(request, record)
                record.code = record.code or response.status
                return response
            except RouterError as error:
                record.code = error.status
                raise
            except asyncio.CancelledError:
                record.code = CLIENT_LEFT
                if self._drain.cutting and not _gone(request):
                    _uncancel()
                    record.code = 503
                    raise UnavailableError(
                        "this router is shutting down", code="router_shutdown", retry_after_s=FAILED_RETRY_S
                    ) from None
                raise
            except Exception:
                record.code = 500
                log.exception("request %s failed", request[REQUEST_ID])
                raise InternalError(
                    f"the router failed on this request; its log says why under {request[REQUEST_ID]}",
                    code="router_fault",
                ) from None
            finally:
                duration_s = time.monotonic() - started_s
                self._metrics.requests.labels(record.model, str(record.code)).inc()
                self._metrics.duration.labels(record.model).observe(duration_s)
                log.debug(
                    "%s %s model=%r code=%d %.3f s id=%s",
                    request.method, request.path, record.model, record.code, duration_s, request[REQUEST_ID],
                )  # fmt: skip

    async def _serve(self, request: web.Request, record: _Record) -> web.StreamResponse:
        body = await self._read(request)
        model = model_of(body)
        route = self._route(model)
        record.model = route.deployment.served_name
        if not route.deployment.knows(model):
            body = rename(body, route.deployment.served_name)
        with self._metrics.in_flight.labels(record.model).track_inprogress():
            return await self._forward(request, route, body, record)

    async def _read(self, request: web.Request) -> bytes:
        limit = self._settings.max_body_bytes
        error = TooLargeError(
            f"the request body is larger than {limit} bytes, the limit of this router (QUIRE_ROUTER_MAX_BODY_BYTES)",
            code="body_too_large",
        )
        if (request.content_length or 0) > limit:
            raise error
        pieces, size = [], 0
        try:
            async with asyncio.timeout(BODY_SILENCE_S) as deadline:
                while piece := await request.content.readany():
                    size += len(piece)
                    if size > limit:
                        raise error
                    pieces.append(piece)
                    deadline.reschedule(asyncio.get_running_loop().time() + BODY_SILENCE_S)
        except TimeoutError:
            raise SlowBodyError(
                f"nothing of the request body came for {BODY_SILENCE_S:g} s", code="body_timeout"
            ) from None
        return b"".join(pieces)

    def _route(self, model: str) -> Route:
        route = self._registry.resolve(model)
        if route is not None:
            return route
        if not self._synced():
            raise UnavailableError(
                "this router has not yet read the models from the cluster",
                code="starting",
                retry_after_s=FAILED_RETRY_S,
            )
        raise NotFoundError(
            f"the model {model!r} does not exist; GET /v1/models lists those that do",
            code="model_not_found",
            param="model",
        )

    async def _forward(self, request: web.Request, route: Route, body: bytes, record: _Record) -> web.StreamResponse:
        upstream_headers = headers.to_upstream(request.headers, request_id=request[REQUEST_ID], remote=request.remote)
        tried: set[str] = set()
        sent_again = 0
        last: _AttemptError | None = None
        for _ in range(self._settings.max_attempts):
            endpoint = choose(route.ready, self._load, self._policy, tried=tried, now=time.monotonic())
            if endpoint is None:
                break
            if last is not None:
                self._metrics.retries.labels(record.model, last.reason).inc()
            tried.add(endpoint.address)
            try:
                with self._load.request(endpoint.address):
                    return await self._attempt(request, endpoint, body, upstream_headers, record)
            except _ClientLeft:
                record.code = CLIENT_LEFT
                raise asyncio.CancelledError from None
            except _AttemptError as error:
                if error.final and error.answer is not None:
                    return error.answer
                last = error
                log.warning(
                    "%s of %s: %s (%s); request %s",
                    endpoint.pod, route.deployment.qualified_name, error.detail, error.reason, request[REQUEST_ID],
                )  # fmt: skip
                self._load.suspect(endpoint.address, until=time.monotonic() + self._settings.suspect_s)
                if error.reason == "reset":
                    if sent_again == MAX_SENT_AGAIN:
                        break
                    sent_again += 1
                    # A pooled connection that the pod closed as it was used is no fault of the pod: it may be its only one.
                    if not any(other.address not in tried for other in route.ready):
                        tried.discard(endpoint.address)
            route = self._registry.resolve(route.deployment.qualified_name) or Route(route.deployment, ())
        if last is not None and last.answer is not None:
            return last.answer
        raise _unavailable(route, last, num_tried=len(tried))

    async def _attempt(
        self,
        request: web.Request,
        endpoint: Endpoint,
        body: bytes,
        upstream_headers: CIMultiDict[str],
        record: _Record,
    ) -> web.StreamResponse:
        url = URL(f"http://{endpoint.address}{request.rel_url.raw_path_qs}", encoded=True)
        started_s = time.monotonic()
        try:
            upstream = await self._session.request(
                request.method, url, data=io.BytesIO(body), headers=upstream_headers, allow_redirects=False
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _AttemptError("connect", str(error) or "no connection") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _AttemptError("reset", str(error) or "closed before an answer") from error
        try:
            self._metrics.upstream_latency.labels(record.model).observe(time.monotonic() - started_s)
            if upstream.status == 503:
                raise await _refused(upstream)
            return await self._stream(request, upstream, record)
        finally:
            upstream.close()  # returns nothing to the pool unless the answer was read to its end

    async def _stream(
        self, request: web.Request, upstream: aiohttp.ClientResponse, record: _Record
    ) -> web.StreamResponse:
        plain_events = upstream.content_type == "text/event-stream" and "Content-Encoding" not in upstream.headers
        cutter = EventCutter() if plain_events else None
        response = web.StreamResponse(
            status=upstream.status, reason=upstream.reason, headers=headers.to_client(upstream.headers)
        )
        begun = False
        try:
            while True:
                try:
                    piece = await upstream.content.readany()
                except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                    if not begun:
                        raise _AttemptError("reset", str(error) or "closed before its first byte") from error
                    return await self._broken(response, request, record, error, events=cutter is not None)
                ended = not piece
                if cutter is not None:
                    piece = cutter.rest() if ended else cutter.push(piece)
                if not begun and (piece or ended):
                    await _to_client(response.prepare(request))
                    begun = True
                if piece:
                    await _to_client(response.write(piece))
                if ended:
                    await _to_client(response.write_eof())
                    return response
        except asyncio.CancelledError:
            if not (begun and self._drain.cutting) or _gone(request):
                raise
            _uncancel()
            record.code = 503
            return await self._end(
                response, request, "this router is shutting down", code="router_shutdown", events=cutter is not None
            )

    async def _broken(
        self, response: web.StreamResponse, request: web.Request, record: _Record, error: BaseException, *, events: bool
    ) -> web.StreamResponse:
        self._metrics.broken_streams.labels(record.model).inc()
        log.warning("the answer to request %s broke off: %s", request[REQUEST_ID], error)
        message = f"the replica that answered broke off; request id {request[REQUEST_ID]}"
        return await self._end(response, request, message, code="upstream_broke_off", events=events)

    async def _end(
        self, response: web.StreamResponse, request: web.Request, message: str, *, code: str, events: bool
    ) -> web.StreamResponse:
        """End an answer that cannot be completed: events end with an error, anything else is visibly incomplete."""
        response.force_close()
        if events:
            await _to_client(response.write(error_event(message, code=code)))
            await _to_client(response.write_eof())
        elif request.transport is not None:
            request.transport.abort()
        return response


async def _to_client(operation: Any) -> None:
    try:
        async with asyncio.timeout(CLIENT_STALL_S):
            await operation
    except (ConnectionError, TimeoutError) as error:
        raise _ClientLeft from error


async def _refused(upstream: aiohttp.ClientResponse) -> _AttemptError:
    """A 503 before the first byte. The answer is kept for the case that no other endpoint does better."""
    try:
        async with asyncio.timeout(UNAVAILABLE_BODY_S):
            body = await upstream.content.readexactly(MAX_UNAVAILABLE_BODY)
    except asyncio.IncompleteReadError as error:
        body = error.partial  # the whole of it, as it nearly always is
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        return _AttemptError("reset", str(error) or "closed or stuck within its 503")
    kept = headers.to_client(upstream.headers)
    kept.popall("Content-Length", None)
    kept.setdefault("Retry-After", str(FAILED_RETRY_S))
    code, message = _error_of(body)
    return _AttemptError(
        "unavailable", message, web.Response(status=503, headers=kept, body=body), final=code in FINAL_CODES
    )


def _error_of(body: bytes) -> tuple[str | None, str]:
    """Code and message of an OpenAI error body, as far as there are any."""
    try:
        error = json.loads(body)["error"]
        return error.get("code"), str(error.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None, "503"


def _unavailable(route: Route, last: _AttemptError | None, *, num_tried: int) -> UnavailableError:
    deployment = route.deployment
    if last is not None:
        return UnavailableError(
            f"the model {deployment.served_name!r} could not be reached on {num_tried} of its endpoints ({last.reason}); "
            f"try again in {FAILED_RETRY_S} s",
            code="upstream_unreachable",
            retry_after_s=FAILED_RETRY_S,
        )
    terminating = sum(endpoint.state is EndpointState.TERMINATING for endpoint in route.endpoints)
    return UnavailableError(
        f"the model {deployment.served_name!r} has no ready endpoint ({len(route.endpoints) - terminating} starting, "
        f"{terminating} terminating); try again in {NO_ENDPOINT_RETRY_S} s, or see why with: "
        f"kubectl describe llmdeployment -n {deployment.namespace} {deployment.name}",
        code="no_ready_endpoint",
        retry_after_s=NO_ENDPOINT_RETRY_S,
    )


def _gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _uncancel() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
