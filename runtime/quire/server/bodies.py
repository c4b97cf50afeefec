"""Reading a body: JSON straight into its model, off the event loop where it is long."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from quire.errors import RequestError

IN_THREAD_BYTES = 200_000

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: Request, model: type[Model]) -> Model:
    """The body as `model`; raises ValidationError or RequestError, which both become a 400."""
    data = await request.body()
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise RequestError(f"the body is not valid UTF-8 (byte {exc.start})", code="invalid_json") from None
    if len(data) < IN_THREAD_BYTES:
        return model.model_validate_json(data)
    return await asyncio.to_thread(model.model_validate_json, data)


def documented(model: type[BaseModel]) -> dict[str, Any]:
    """What OpenAPI says about the body, since the routes read it themselves."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
