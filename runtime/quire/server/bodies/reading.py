"""Routes that take a body: read off the event loop where it is long, refused and warned of as its fields say, documented as it is read."""

from __future__ import annotations

import asyncio
import contextvars
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from quire.errors import RequestError, shown
from quire.server.bodies.amount import bytes_as_read
from quire.server.bodies.fields import MOST_NAMED, Body
from quire.server.errors import invalid
from quire.server.flight.room import Hold

IN_THREAD_BYTES = 32_000
"""A body as long as that is read beside the event loop: one of 200 000 may take 50 ms, and ten may come at once."""
_READER = ThreadPoolExecutor(1, thread_name_prefix="reading")
"""Long bodies are read one after the other. Reading one holds the interpreter's lock all the while, 0.2 s at most; several threads would
hand it on among each other, and the event loop wait for all of them."""
IGNORED_HEADER = "x-quire-ignored-fields"
_COMPONENTS = "#/components/schemas/{model}"

SomeBody = TypeVar("SomeBody", bound=Body)
Handler = Callable[[Request, SomeBody], Awaitable[Response]]


def post(routes: APIRouter, path: str, model: type[SomeBody]) -> Callable[[Handler[SomeBody]], Handler[SomeBody]]:
    """A route whose body is a `model`. The handler gets it without anything that must be refused; unknown fields are named in a header."""

    def add(handler: Handler[SomeBody]) -> Handler[SomeBody]:
        async def endpoint(request: Request) -> Response:
            body, unknown = await read_body(request, model)
            response = await handler(request, body)
            if unknown:
                response.headers[IGNORED_HEADER] = ", ".join(map(_in_header, unknown))
            return response

        endpoint.__name__, endpoint.__doc__ = handler.__name__, handler.__doc__
        endpoint.body = model  # type: ignore[attr-defined]
        routes.add_api_route(path, endpoint, methods=["POST"], response_class=Response)
        return handler

    return add


async def read_body(request: Request, model: type[SomeBody]) -> tuple[SomeBody, list[str]]:
    """The body as `model`, and the names of fields that nobody knows; raises RequestError, or OverloadedError where there is no room for it."""
    if (encoding := request.headers.get("content-encoding", "identity").lower()) not in ("", "identity"):
        message = (
            f"bodies are read as they come, and this one has the content-encoding {shown(encoding)}; send it without"
        )
        raise RequestError(message, code="unsupported_content")
    data = await _received(request)
    if len(data) < IN_THREAD_BYTES:
        return _read(data, model)
    read = partial(contextvars.copy_context().run, _read_long, data, model, request.state.hold)
    return await asyncio.get_running_loop().run_in_executor(_READER, read)


async def _received(request: Request) -> bytes:
    """All of the body. `Request.body` would keep it as long as a stream lasts, and many small parts in many times their size."""
    data = bytearray()
    try:
        async for part in request.stream():
            data += part
        return bytes(data)
    finally:
        data.clear()  # the traceback of a refusal would keep it while the client is told


def _read_long(data: bytes, model: type[SomeBody], hold: Hold) -> tuple[SomeBody, list[str]]:
    num_bytes = bytes_as_read(data)
    hold.take(len(data) + num_bytes)
    read = _read(data, model, shows_value=False)
    hold.take(num_bytes)
    return read


def _read(data: bytes, model: type[SomeBody], *, shows_value: bool = True) -> tuple[SomeBody, list[str]]:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RequestError(f"the body is not valid UTF-8 (byte {exc.start})", code="invalid_json") from None
    try:
        body = model.model_validate_json(data)
    except ValidationError as exc:
        raise invalid(exc, shows_value=shows_value) from None
    body.refuse()
    return body, list(islice(body.unknown_fields(), MOST_NAMED))


def bodies_of(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, type[Body]]]:
    """Path and body of each route that takes one."""
    for route in routes:
        if isinstance(route, Route):
            if (model := getattr(route.endpoint, "body", None)) is not None:
                yield route.path, model
        else:  # FastAPI keeps routers that were included
            yield from bodies_of(route.original_router.routes)  # type: ignore[attr-defined]


def document(app: FastAPI) -> None:
    """Put the bodies into the application's OpenAPI document."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            whole, found = plain(), dict(bodies_of(app.routes))
            keys = [(model, "validation") for model in dict.fromkeys(found.values())]
            schemas, definitions = models_json_schema(keys, ref_template=_COMPONENTS)  # type: ignore[arg-type]
            parts = whole.setdefault("components", {}).setdefault("schemas", {})
            parts.update(definitions.get("$defs", {}))
            for path, model in found.items():
                content = {"application/json": {"schema": schemas[(model, "validation")]}}
                whole["paths"][path]["post"]["requestBody"] = {"required": True, "content": content}
        return app.openapi_schema  # type: ignore[return-value]

    app.openapi = openapi  # type: ignore[method-assign]


def _in_header(name: str) -> str:
    """A field's name as far as a header may hold it."""
    return re.sub(r"[^A-Za-z0-9_.-]", "?", name)[:64]
