"""One request from client to pod and back: choose, send, retry before the first byte, pass the answer on after it.

Called by `app` for each routed POST. The body is read whole (bounded) so that it can be sent again; the answer is
streamed by `relay`. A client that leaves cancels the handler, which closes the connection to the pod at once.

A request for a model at zero waits for its first pod (`hold`), and is chosen for like any other then.

Until the client has got a byte, an endpoint that cannot be reached, breaks off, answers 503 or has not loaded the adapter that is asked
for is replaced by another one. A request that was already sent is sent again only once: should it be what kills the pods, it kills few.
Nothing here knows Kubernetes, or what is in the body besides `model`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from quire_router import headers
from quire_router.body import model_of, rename
from quire_router.choose import LoadTable, Policy, choose
from quire_router.drain import Drain
from quire_router.endpoints import Endpoint, EndpointState
from quire_router.errors import InternalError, NotFoundError, RouterError, UnavailableError
from quire_router.hold import NoPlaceError, WaitingRoom
from quire_router.metrics import Metrics, NotHeld
from quire_router.registry import Registry, Route
from quire_router.relay import REQUEST_ID, ClientLeftError, Relay, read_body
from quire_router.settings import Settings
from quire_router.upstream import BUSY, NOT_THERE_YET, RETRY_AFTER_S, AttemptError, send

log = logging.getLogger(__name__)

NO_ENDPOINT_RETRY_S = 5
MAX_SENT_AGAIN = 1
CLIENT_LEFT = 499


@dataclass(slots=True)
class _Record:
    """What the metrics and the log say about one request."""

    model: str = ""
    code: int = 0


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
        room: WaitingRoom,
        synced: Callable[[], bool],
        dice: random.Random | None = None,
    ) -> None:
        self._room = room
        self._dice = dice or random.Random()
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
                        "this router is shutting down", code="router_shutdown", retry_after_s=RETRY_AFTER_S
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
        body = await read_body(request, limit=self._settings.max_body_bytes)
        model = model_of(body)
        route = self._route(model)
        record.model = route.deployment.served_name
        self._metrics.came(route.deployment.key)
        if model != route.known_as:
            body = rename(body, route.known_as)
        with self._metrics.in_flight.labels(record.model).track_inprogress():
            return await self._forward(request, route, body, record)

    def _route(self, model: str) -> Route:
        route = self._registry.resolve(model)
        if route is not None:
            return route
        if not self._synced():
            raise UnavailableError(
                "this router has not yet read the models from the cluster",
                code="starting",
                retry_after_s=RETRY_AFTER_S,
            )
        raise NotFoundError(
            f"the model {model!r} does not exist; GET /v1/models lists those that do",
            code="model_not_found",
            param="model",
        )

    async def _forward(self, request: web.Request, route: Route, body: bytes, record: _Record) -> web.StreamResponse:
        upstream_headers = headers.to_upstream(request.headers, request_id=request[REQUEST_ID], remote=request.remote)
        refusals = NOT_THERE_YET if route.adapter else BUSY
        tried: set[str] = set()
        sent_again = 0
        last: AttemptError | None = None
        for _ in range(self._settings.max_attempts):
            if route.deployment.from_zero and not route.usable:
                route = await self._first_endpoint(route, len(body))
                tried.clear()
            endpoint = choose(
                route.usable, self._load, self._policy,
                tried=tried, now=time.monotonic(), weights=route.deployment.weights, dice=self._dice,
            )  # fmt: skip
            if endpoint is None:
                break
            if last is not None:
                self._metrics.retries.labels(record.model, last.reason).inc()
            tried.add(endpoint.address)
            try:
                with self._load.request(endpoint.address):
                    return await self._attempt(request, endpoint, body, upstream_headers, record, refusals)
            except ClientLeftError:
                record.code = CLIENT_LEFT
                raise asyncio.CancelledError from None
            except AttemptError as error:
                if error.final and error.answer is not None:
                    return error.answer
                last = error
                if error.reason == "missing":
                    route = self._again(route)
                    continue  # nothing is wrong with the pod
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
                    if not any(other.address not in tried for other in route.usable):
                        tried.discard(endpoint.address)
            route = self._again(route)
        if last is not None and last.answer is not None:
            return last.answer
        raise _unavailable(route, last, num_tried=len(tried))

    async def _first_endpoint(self, route: Route, num_bytes: int) -> Route:
        """The same once somebody can answer; raise UnavailableError when too many wait or it takes too long, NotFoundError when it is deleted."""
        deployment, timeout_s = route.deployment, self._settings.hold_timeout_s
        try:
            with self._room.place(deployment.key, num_bytes) as bell:
                async with asyncio.timeout(timeout_s):
                    while True:
                        bell.clear()
                        now = self._registry.resolve(deployment.qualified_name)
                        if now is None:
                            raise NotFoundError(
                                f"the model {deployment.served_name!r} was deleted while this request waited for its first replica",
                                code="model_not_found",
                                param="model",
                            )
                        if now.usable:
                            return replace(route, deployment=now.deployment, endpoints=now.endpoints)
                        await bell.wait()
        except NoPlaceError as error:
            raise self._not_held(route, "full", f"; {error}") from None
        except TimeoutError:
            raise self._not_held(route, "late", f", {timeout_s:g} s after this request came") from None

    def _not_held(self, route: Route, reason: NotHeld, why: str) -> UnavailableError:
        deployment = route.deployment
        self._metrics.not_held(deployment.key, reason)
        return UnavailableError(
            f"the model {deployment.served_name!r} starts when somebody asks and has no ready replica yet{why}; try again in "
            f"{NO_ENDPOINT_RETRY_S} s, or see why with: kubectl describe llmdeployment -n {deployment.namespace} {deployment.name}",
            code="no_ready_endpoint",
            retry_after_s=NO_ENDPOINT_RETRY_S,
        )

    def _again(self, route: Route) -> Route:
        """The same LLMDeployment as it is now."""
        deployment = route.deployment
        return self._registry.resolve(deployment.qualified_name) or Route(deployment, (), deployment.served_name)

    async def _attempt(
        self,
        request: web.Request,
        endpoint: Endpoint,
        body: bytes,
        upstream_headers: CIMultiDict[str],
        record: _Record,
        refusals: frozenset[int],
    ) -> web.StreamResponse:
        url = URL(f"http://{endpoint.address}{request.rel_url.raw_path_qs}", encoded=True)
        started_s = time.monotonic()
        upstream = await send(
            self._session, request.method, url, body=body, upstream_headers=upstream_headers, refusals=refusals
        )
        relay = Relay(request, upstream)
        try:
            self._metrics.upstream_latency.labels(record.model).observe(time.monotonic() - started_s)
            response = await relay.run()
        except asyncio.CancelledError:
            if not (relay.begun and self._drain.cutting) or _gone(request):
                raise
            _uncancel()
            record.code = 503
            response = await relay.cut()
        finally:
            upstream.close()  # gives nothing back to the pool unless the answer was read to its end
        if relay.outcome == "broken":
            self._metrics.broken_streams.labels(record.model).inc()
        return response


def _unavailable(route: Route, last: AttemptError | None, *, num_tried: int) -> UnavailableError:
    deployment = route.deployment
    if last is not None and (route.ready or last.reason != "connect"):
        return UnavailableError(
            f"the model {deployment.served_name!r} could not be reached on {num_tried} of its endpoints ({last.reason}); "
            f"try again in {RETRY_AFTER_S} s",
            code="upstream_unreachable",
            retry_after_s=RETRY_AFTER_S,
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
