"""The routes that load and unload LoRA adapters. There are no adapters yet: both say so with 501, whatever the body."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.flight.frontend import Frontend

PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


def router(_: Frontend) -> APIRouter:
    """Both, and not in the schema: nothing that a client sends changes the answer."""
    routes = APIRouter()

    async def unsupported() -> Response:
        raise RequestError("this engine has no LoRA adapters", code="adapters_not_supported", status=501)

    for path in PATHS:
        routes.add_api_route(path, unsupported, methods=["POST"], include_in_schema=False)
    return routes
