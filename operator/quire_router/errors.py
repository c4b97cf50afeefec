"""Errors of the router; the class tells the caller what to do.

    RouterError              one request is answered with `status` and an OpenAI error body
    ├── BadRequestError      400, 408, 413: the client must change the request
    ├── NotFoundError        404, 405: no such model or route
    ├── UnavailableError     503 with Retry-After: the same request may succeed later
    └── InternalError        500: a fault of this router
    SettingsError            the start is refused; the message names the variable
    WatchError               one list or watch attempt failed; the watcher backs off and tries again
    ├── GoneError            the watch cannot be resumed (410, or no JSON): list again
    └── AbsentError          the kind is not there, or not for this router (403, 404)

No I/O here, and nothing of aiohttp: `app` turns a RouterError into a response.
"""

from __future__ import annotations

import json


class RouterError(Exception):
    """Base of the errors that answer one request. `code` is a stable word for programs, `param` a field of the body."""

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.param = param

    def body(self) -> bytes:
        """The OpenAI error body."""
        return error_body(self.message, kind=self.kind, code=self.code, param=self.param)


class BadRequestError(RouterError):
    """The request cannot be routed as it is."""

    status = 400
    kind = "invalid_request_error"


class TooLargeError(BadRequestError):
    """The body is larger than this router accepts."""

    status = 413


class SlowBodyError(BadRequestError):
    """The body stopped arriving."""

    status = 408


class NotFoundError(RouterError):
    """No such model or route."""

    status = 404
    kind = "invalid_request_error"


class MethodNotAllowedError(NotFoundError):
    """The route exists, but not for this method."""

    status = 405

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message, code="method_not_allowed")
        self.allow = allow


class UnavailableError(RouterError):
    """Nothing can answer now; `retry_after_s` is a hint for the client."""

    status = 503
    kind = "service_unavailable"

    def __init__(self, message: str, *, code: str, retry_after_s: int) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class InternalError(RouterError):
    """A fault of the router itself; the log has the traceback under the request id."""


class SettingsError(Exception):
    """A variable of the environment is unknown or out of bounds; the message names it."""


class WatchError(Exception):
    """One list or watch attempt failed; the message says which resource, where and why."""


class GoneError(WatchError):
    """The watch cannot be resumed; a new list can."""


class AbsentError(WatchError):
    """The API server serves no such kind, or not to this router."""


def error_body(message: str, *, kind: str, code: str | None, param: str | None = None) -> bytes:
    """Encode the error object every OpenAI client understands."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()
