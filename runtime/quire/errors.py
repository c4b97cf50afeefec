"""Errors of the runtime; the class tells the caller what to do.

    QuireError
    ├── ConfigError          the start is refused: a flag, a variable or the configuration file has a bad value (a ValueError too)
    ├── ModelError           the start is refused: the model cannot be found, read, understood or held in memory
    ├── RequestError         one request is refused (HTTP 4xx); everything else goes on (a ValueError too)
    ├── OverloadedError      one request is refused for now (HTTP 503 with Retry-After); try again later
    └── EngineDeadError      the engine process is gone; the server stops being ready and exits non-zero

Every message says what, where, and what would help, in one line.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_SHOWN = 80
"""Characters of a value in a message."""


class QuireError(Exception):
    """Base of all errors this package raises on purpose."""


class ConfigError(QuireError, ValueError):
    """A configuration value is unknown or out of bounds; the message names the flag."""


class ModelError(QuireError):
    """The model cannot be found, read, understood or held in memory; the message names the file."""


class RequestError(QuireError, ValueError):
    """A request is not acceptable.

    `param` is the field of the request body, `code` a stable word for programs, `status` the HTTP status.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.status = status


class OverloadedError(QuireError):
    """No room now. `reason` is a label of `dropped_requests_total`: queue_full, queue_timeout, draining, ..."""

    def __init__(self, message: str, *, reason: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineDeadError(QuireError):
    """The engine process ended; the message carries its last words."""


def shown(value: object) -> str:
    """A bad value as a message shows it: cut short, and written no further than that."""
    text = ""
    for piece in _written(value):
        text += piece
        if len(text) > MAX_SHOWN:
            return f"{text[: MAX_SHOWN - 3]}..."
    return text


def _written(value: object) -> Iterator[str]:
    """The `repr` of a value as JSON has them, in pieces of bounded length; of a long text the beginning."""
    if type(value) is list:
        yield "["
        for place, one in enumerate(value):
            yield ", " if place else ""
            yield from _written(one)
        yield "]"
    elif type(value) is dict:
        yield "{"
        for place, (name, one) in enumerate(value.items()):
            yield ", " if place else ""
            yield from _written(name)
            yield ": "
            yield from _written(one)
        yield "}"
    else:
        yield repr(value[: 2 * MAX_SHOWN] if isinstance(value, str) else value)
