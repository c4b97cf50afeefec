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
    """No room now. `reason` is a label of `dropped_requests_total`: queue_full, queue_timeout or draining."""

    def __init__(self, message: str, *, reason: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class EngineDeadError(QuireError):
    """The engine process ended; the message carries its last words."""


def shown(value: object) -> str:
    """A bad value as a message shows it: cut short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
