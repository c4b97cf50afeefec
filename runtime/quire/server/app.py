"""The application: routes, error form, and the edge around them."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI

import quire
from quire.config import parse_bytes
from quire.server import completions, errors, service
from quire.server.auth.guard import Guard
from quire.server.edge import Edge
from quire.server.frontend import Frontend


def create_app(frontend: Frontend, *, clock: Callable[[], float] = time.monotonic) -> FastAPI:
    """Everything `quire serve` answers, over one frontend. clock: of rates and of reading files again. Raises ConfigError.

    The edge is middleware and not a wrapper: outside of it FastAPI would answer unknown exceptions first, in plain text.
    """
    app = FastAPI(title="Quire", version=quire.__version__, redirect_slashes=False)
    app.include_router(completions.router(frontend))
    app.include_router(service.router(frontend))
    errors.install(app)
    config = frontend.config
    limit = parse_bytes(config.max_body_size, flag="--max-body-size")
    app.add_middleware(Edge, guard=Guard(config, clock=clock), max_body_size=limit, dropped=frontend.drop)
    return app
