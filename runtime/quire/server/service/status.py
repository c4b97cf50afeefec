"""The routes around generation: models, version, load, health, metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

import quire
from quire.errors import OverloadedError
from quire.server.flight.frontend import RETRY_DRAINING_S, RETRY_LOADING_S, Frontend, State
from quire.server.tasks import tasks_of


def router(frontend: Frontend) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @routes.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_card(frontend, name) for name in frontend.names]}

    @routes.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        return _card(frontend, frontend.check_model(name))

    @routes.get("/version")
    async def version() -> dict[str, str]:
        return {"version": quire.__version__}

    @routes.get("/load")
    async def load() -> dict[str, Any]:
        """What a load balancer wants to know: requests that wait; of others, sequences."""
        stats = frontend.stats
        return {
            "state": frontend.state.value,
            "server_load": frontend.num_in_flight,
            "waiting": frontend.num_waiting,
            "running": stats.num_running if stats else 0,
            "cache_usage": stats.num_blocks_used / max(stats.num_blocks, 1) if stats else None,
        }

    @routes.get("/health")
    @routes.get("/health/live")
    async def live() -> Response:
        if frontend.alive:
            return JSONResponse({"status": "alive", "state": frontend.state.value})
        cause = str(frontend.error or f"no sign of life for {frontend.config.liveness_timeout:g} s while there is work")
        return JSONResponse({"status": "dead", "state": frontend.state.value, "message": cause}, 503)

    @routes.get("/health/ready")
    async def ready() -> Response:
        if frontend.state is State.READY and frontend.alive:
            return JSONResponse({"status": "ready", "model": frontend.names[0]})
        content: dict[str, Any] = {"status": "not ready", "state": frontend.state.value}
        if frontend.state is State.LOADING:
            content["stage"] = frontend.stage
        if frontend.error is not None:
            content["message"] = str(frontend.error)
        wait_s = RETRY_DRAINING_S if frontend.state is State.DRAINING else RETRY_LOADING_S
        return JSONResponse(content, 503, {"Retry-After": str(wait_s)})

    @routes.get("/metrics")
    async def metrics(request: Request) -> Response:
        page, content_type = frontend.metrics.exposition(request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return routes


def _card(frontend: Frontend, name: str) -> dict[str, Any]:
    try:
        length: int | None = frontend.ready.max_model_len
        tasks: tuple[str, ...] | None = tasks_of(frontend.ready)
    except OverloadedError:
        length = tasks = None
    return {
        "id": name,
        "object": "model",
        "created": frontend.created,
        "owned_by": "quire",
        "root": frontend.config.model,
        "max_model_len": length,
        "tasks": tasks,
    }
