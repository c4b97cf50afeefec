"""Errors as HTTP: one OpenAI body for everything that can go wrong, and Anthropic's for its clients.

Status, type and code of each class are decided here and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from quire.errors import MAX_SHOWN, EngineDeadError, OverloadedError, QuireError, RequestError, shown

_log = logging.getLogger(__name__)

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "overloaded_error",
}


class ClientGoneError(Exception):
    """The client closed the connection; nobody reads the answer (logged as 499)."""


def body(
    status: int, message: str, *, param: str | None = None, code: str | None = None, request_id: str | None = None
) -> dict[str, Any]:
    """The error object. request_id: only for faults of ours, to find them in the log."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error = {"message": message, "type": kind, "param": param, "code": code}
    return {"error": error | ({"request_id": request_id} if request_id else {})}


def anthropic_form(content: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """The same error as clients of /v1/messages read it; param and code stay."""
    error = content["error"]
    kind = "api_error" if error["type"] == "server_error" else error["type"]
    if error["code"] == "body_too_large":
        kind = "request_too_large"
    return {"type": "error", "error": {**error, "type": kind}, "request_id": request_id}


def told_at(path: str, content: dict[str, Any], request_id: str) -> dict[str, Any]:
    """An error in the form that clients of a path read."""
    return anthropic_form(content, request_id) if f"{path}/".startswith("/v1/messages/") else content


def describe(exc: BaseException, request_id: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and extra headers of an exception. Unknown ones are logged and told without detail."""
    match exc:
        case RequestError():
            faulty = request_id if exc.status >= 500 and exc.status != 501 else None
            headers = {"Retry-After": "1"} if exc.status == 503 else {}
            return exc.status, body(exc.status, str(exc), param=exc.param, code=exc.code, request_id=faulty), headers
        case OverloadedError():
            return 503, body(503, str(exc), code=exc.reason), {"Retry-After": str(exc.retry_after_s)}
        case EngineDeadError():
            message = f"the engine failed: {exc}"
            return 500, body(500, message, code="engine_dead", request_id=request_id), {}
        case RequestValidationError():
            return describe(
                _refusal(exc.errors(), skip=1), request_id
            )  # FastAPI says first where in the request it was
        case ValidationError():
            return describe(invalid(exc), request_id)
        case HTTPException():
            code = {404: "not_found", 405: "method_not_allowed"}.get(exc.status_code)
            return exc.status_code, body(exc.status_code, str(exc.detail), code=code), dict(exc.headers or {})
        case _:
            _log.error("request %s failed", request_id, exc_info=exc)
            message = "the server failed on this request; its log has the details under the request id"
            return 500, body(500, message, code="internal_error", request_id=request_id), {}


def invalid(exc: ValidationError, *, shows_value: bool = True) -> RequestError:
    """The error for a body that is not as its fields say. shows_value: with what was found instead; of a long body that takes as long as
    reading it."""
    return _refusal(exc.errors(include_url=False, include_input=shows_value), skip=0)


def _refusal(errors: Sequence[Any], *, skip: int) -> RequestError:
    message, param = _first_error(errors, skip=skip)
    code = "invalid_json" if errors[0]["type"] == "json_invalid" else "invalid_value"
    return RequestError(message, param=param, code=code)


def install(app: FastAPI) -> None:
    """Every error the application can raise leaves in the same form."""

    async def handle(request: Request, exc: Exception) -> JSONResponse:
        if (
            isinstance(exc, HTTPException)
            and exc.status_code in (404, 405)
            and exc.detail in ("Not Found", "Method Not Allowed")
        ):
            what = "no such route" if exc.status_code == 404 else "this route does not take that method"
            exc = HTTPException(exc.status_code, f"{what}: {request.method} {request.url.path}", exc.headers)
        status, content, headers = describe(exc, request.state.request_id)
        content = told_at(request.url.path, content, request.state.request_id)
        return JSONResponse(content, status, headers)

    for kind in (QuireError, RequestValidationError, ValidationError, HTTPException):
        app.add_exception_handler(kind, handle)


def _first_error(errors: Sequence[Any], *, skip: int) -> tuple[str, str | None]:
    """One sentence about the first thing pydantic found, and the field. skip: steps of its path that are no field."""
    error = errors[0]
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON: {error.get('ctx', {}).get('error', error['msg'])}", None
    path = [str(part)[:MAX_SHOWN] for part in error["loc"][skip:]]  # names too may be of any length
    path = [part for i, part in enumerate(path) if i == 0 or not _is_variant(part)]
    param = ".".join(path) or None
    message = error["msg"][:1].lower() + error["msg"][1:]
    if error["type"] == "missing":
        return f"{param} is required", param
    if not param:
        return f"the body: {message}", param
    return f"{param}: {message}" + (f", got {shown(error['input'])}" if "input" in error else ""), param


_VARIANTS = ("str", "texts", "ids", "lists", "ToolChoice")


def _is_variant(part: str) -> bool:
    """Whether a step of pydantic's path names a member of a union instead of a field."""
    return part in _VARIANTS or part.startswith(("list[", "dict[", "literal[", "function-"))
