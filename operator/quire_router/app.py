"""The HTTP surface and the life of the process: listeners, watchers, readiness, graceful end.

`build` gives the aiohttp application (tests use it alone), `serve` runs a whole router until `stop` is set. Routing decisions
are in `proxy`; here are paths, health and the translation of errors into responses.

Readiness: 503 until every first list is in, and from SIGTERM on. A watch that dies later does not make the router unready:
all replicas would lose the API server together, and the last known state still serves. It shows in the body of
/health/ready, in `quire_router_watch_age_seconds` and in the log.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

import httpx2
from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from quire_router import __version__, headers
from quire_router.choose import LeastLoaded, LoadTable
from quire_router.drain import Drain
from quire_router.errors import MethodNotAllowedError, NotFoundError, RouterError, SettingsError, UnavailableError
from quire_router.hold import WaitingRoom
from quire_router.kube import Watcher, watchers
from quire_router.metrics import Metrics
from quire_router.proxy import Proxy
from quire_router.registry import ModelEntry, Registry
from quire_router.relay import REQUEST_ID
from quire_router.settings import Settings
from quire_router.upstream import open_session

log = logging.getLogger(__name__)

ROUTED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
    "/generate",
    "/tokenize",
    "/detokenize",
)
"""POST paths forwarded by the `model` of their JSON body. The pods' own routes (metrics, load, health) are not reachable."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Surface:
    """Handlers of everything that is not forwarded."""

    def __init__(self, registry: Registry, drain: Drain, watches: Sequence[Watcher]) -> None:
        self._registry = registry
        self._drain = drain
        self._watches = watches

    def synced(self) -> bool:
        return all(watch.synced.is_set() for watch in self._watches)

    async def live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def ready(self, _: web.Request) -> web.Response:
        waiting = [watch.where for watch in self._watches if not watch.synced.is_set()]
        if self._drain.draining:
            return web.json_response({"status": "draining"}, status=503)
        if waiting:
            return web.json_response({"status": "starting", "waiting_for": waiting}, status=503)
        return web.json_response({"status": "ready", "stale": [watch.where for watch in self._watches if watch.stale]})

    async def version(self, _: web.Request) -> web.Response:
        return web.json_response({"version": __version__})

    async def models(self, _: web.Request) -> web.Response:
        self._refuse_unless_synced()
        return web.json_response(
            {"object": "list", "data": [_model_object(entry) for entry in self._registry.models()]}
        )

    async def model(self, request: web.Request) -> web.Response:
        self._refuse_unless_synced()
        name = request.match_info["model"]
        entry = self._registry.model(name)
        if entry is None:
            raise NotFoundError(
                f"the model {name!r} does not exist; GET /v1/models lists those that do",
                code="model_not_found",
                param="model",
            )
        return web.json_response(_model_object(entry))

    async def nothing(self, request: web.Request) -> web.Response:
        if request.path in ROUTED:
            raise MethodNotAllowedError(f"{request.path} takes POST, not {request.method}", allow="POST")
        if request.path in {route.canonical for route in request.app.router.resources() if "{" not in route.canonical}:
            raise MethodNotAllowedError(f"{request.path} takes GET, not {request.method}", allow="GET")
        raise NotFoundError(
            f"there is no {request.path} here; see GET /v1/models and POST /v1/chat/completions", code="unknown_route"
        )

    def _refuse_unless_synced(self) -> None:
        if not self.synced():
            raise UnavailableError(
                "this router has not yet read the models from the cluster", code="starting", retry_after_s=1
            )


def build(proxy: Proxy, surface: Surface, drain: Drain) -> web.Application:
    """The application on the main port."""

    async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
        if REQUEST_ID in request:
            response.headers[headers.REQUEST_ID] = request[REQUEST_ID]
        if drain.draining:
            response.force_close()
            response.headers["Connection"] = "close"

    app = web.Application(middlewares=[_errors])
    app.on_response_prepare.append(on_prepare)
    for path in ROUTED:
        app.router.add_post(path, proxy.handle)
    app.router.add_get("/v1/models", surface.models)
    app.router.add_get("/v1/models/{model:.+}", surface.model)
    app.router.add_get("/health", surface.live)
    app.router.add_get("/health/live", surface.live)
    app.router.add_get("/health/ready", surface.ready)
    app.router.add_get("/version", surface.version)
    app.router.add_route("*", "/{anything:.*}", surface.nothing)
    return app


def build_metrics(metrics: Metrics) -> web.Application:
    """The application on the metrics port."""

    async def scrape(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", scrape)
    return app


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    request[REQUEST_ID] = headers.request_id(request.headers)
    try:
        return await handler(request)
    except RouterError as error:
        response = web.Response(status=error.status, body=error.body(), content_type="application/json")
        if isinstance(error, UnavailableError):
            response.headers["Retry-After"] = str(error.retry_after_s)
        if isinstance(error, MethodNotAllowedError):
            response.headers["Allow"] = error.allow
        return response


def _model_object(entry: ModelEntry) -> dict[str, object]:
    return {
        "id": entry.id,
        "object": "model",
        "created": entry.created_unix_s,
        "owned_by": "quire",
        "root": entry.id if entry.adapter else entry.deployment.served_name,
        "parent": entry.deployment.served_name if entry.adapter else None,
        "deployment": entry.deployment.qualified_name,
        "ready_replicas": entry.num_ready,
    }


class Router:
    """A whole router: state, watchers, both listeners."""

    def __init__(self, settings: Settings, client: httpx2.AsyncClient) -> None:
        self.settings = settings
        self.room = WaitingRoom(settings.max_held, settings.max_held_bytes)
        self.registry = Registry(self.room.look_again)
        self.metrics = Metrics(self.registry.count_endpoints, self.room.count)
        self.drain = Drain()
        self.watches = watchers(
            client, self.registry, self.metrics,
            namespaces=settings.watch_namespaces, timeout_s=settings.watch_timeout_s,
        )  # fmt: skip
        self.addresses: list[tuple[str, int]] = []
        """Where it listens: the OpenAI surface, the metrics."""

    async def serve(self, stop: asyncio.Event, *, started: Callable[[], None] = lambda: None) -> None:
        """Serve until `stop` is set and the drain is over. Raises what killed a watcher, should that ever happen."""
        settings, surface = self.settings, Surface(self.registry, self.drain, self.watches)
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(open_session(settings))
            proxy = Proxy(
                self.registry, LoadTable(), LeastLoaded(random.Random()), session, self.metrics, self.drain, settings,
                room=self.room, synced=surface.synced,
            )  # fmt: skip
            # Handlers are cancelled when their client leaves; what is left at the end was cut already.
            main = web.AppRunner(
                build(proxy, surface, self.drain), access_log=None, handler_cancellation=True, shutdown_timeout=1.0
            )
            side = web.AppRunner(build_metrics(self.metrics), access_log=None, shutdown_timeout=1.0)
            sites = []
            for runner, port, name in ((side, settings.metrics_port, "METRICS_PORT"), (main, settings.port, "PORT")):
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                site = web.TCPSite(runner, settings.host, port)
                try:
                    await site.start()
                except OSError as error:
                    raise SettingsError(
                        f"cannot listen on {settings.host}:{port} (QUIRE_ROUTER_{name}): {error.strerror or error}"
                    ) from error
                sites.append(site)
            self.addresses = [runner.addresses[0][:2] for runner in (main, side)]
            log.info("listening on %s:%d, metrics on port %d", *self.addresses[0], self.addresses[1][1])
            group = await stack.enter_async_context(asyncio.TaskGroup())
            tasks = [group.create_task(watch.run(), name=f"watch {watch.where}") for watch in self.watches]
            started()
            await stop.wait()
            await self._end(sites[1])
            for task in tasks:
                task.cancel()

    async def _end(self, site: web.TCPSite) -> None:
        self.drain.begin()
        log.info("draining: not ready, still serving for %g s", self.settings.pre_drain_s)
        await asyncio.sleep(self.settings.pre_drain_s)
        await site.stop()
        log.info("no new connections; running requests may take %g s more", self.settings.drain_timeout_s)
        left = await self.drain.wait_idle(self.settings.drain_timeout_s)
        if left:
            log.warning("ending %d requests that still run after QUIRE_ROUTER_DRAIN_TIMEOUT_S", left)
            self.drain.cut()
            await self.drain.wait_idle(5.0)
