"""The application: routes, error form, and the edge around them."""

from __future__ import annotations

import time
from collections.abc import Callable

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

import quire
from quire.config import parse_bytes
from quire.errors import ConfigError
from quire.server import errors
from quire.server.anthropic import routes as messages
from quire.server.auth.guard import Guard
from quire.server.bodies.reading import IGNORED_HEADER, document
from quire.server.edge.access import Finished
from quire.server.edge.layer import Edge
from quire.server.flight.frontend import Frontend
from quire.server.openai import chat, completions
from quire.server.openai.responses import routes as responses
from quire.server.page import routes as page
from quire.server.pooling import routes as pooling
from quire.server.service import adapters, generate, status, tokens

MIN_BODY_BYTES = 1024
"""A smaller bound would let no request through."""
EXPOSED_HEADERS = (
    "retry-after",
    "x-request-id",
    IGNORED_HEADER,
    *(f"x-ratelimit-{what}-{kind}" for what in ("limit", "remaining", "reset") for kind in ("requests", "tokens")),
)
"""What a page of another origin may read of an answer's headers."""


def create_app(
    frontend: Frontend,
    *,
    clock: Callable[[], float] = time.monotonic,
    trace: Callable[[Finished], None] | None = None,
) -> FastAPI:
    """Everything `quire serve` answers, over one frontend. clock: of rates and of reading files again. trace: told of each request
    that is over. Raises ConfigError.

    The edge is middleware and not a wrapper: outside of it FastAPI would answer unknown exceptions first, in plain text.
    """
    app = FastAPI(title="Quire", version=quire.__version__, redirect_slashes=False)
    for endpoint in (completions, chat, responses, messages, generate, pooling, tokens, status, adapters):
        app.include_router(endpoint.router(frontend))
    document(app)
    config = frontend.config
    shown = page.load() if config.web_page else {}
    app.include_router(page.router(shown))
    errors.install(app)
    limit = parse_bytes(config.max_body_size, flag="--max-body-size")
    if limit < MIN_BODY_BYTES:
        raise ConfigError(f"--max-body-size must be at least {MIN_BODY_BYTES}, got {config.max_body_size}")
    guard = Guard(config, public=shown, clock=clock)
    app.add_middleware(Edge, guard=guard, max_body_size=limit, dropped=frontend.drop, trace=trace)
    if config.cors_allow_origin:
        # Outside of the edge: a browser asks without a key, and reads refusals too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=config.cors_allow_origin,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
            expose_headers=EXPOSED_HEADERS,
        )
    return app
