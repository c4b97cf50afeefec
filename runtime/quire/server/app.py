"""The application: routes, error form, and the edge around them."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp

import quire
from quire.config import parse_bytes
from quire.server import completions, errors, service
from quire.server.edge import Edge
from quire.server.frontend import Frontend


def create_app(frontend: Frontend) -> ASGIApp:
    """Everything `quire serve` answers, over one frontend."""
    app = FastAPI(title="Quire", version=quire.__version__, redirect_slashes=False)
    app.include_router(completions.router(frontend))
    app.include_router(service.router(frontend))
    errors.install(app)
    config = frontend.config
    limit = parse_bytes(config.max_body_size, flag="--max-body-size")
    return Edge(app, api_keys=config.api_key, max_body_size=limit)
