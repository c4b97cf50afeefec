"""The form of log lines, the same in the server and in the engine process, whose lines mix on one standard error."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any, Literal, TextIO

LogFormat = Literal["text", "json"]

request_id: ContextVar[str] = ContextVar("request_id", default="")
"""Of the HTTP request that is being answered; lines in JSON carry it."""


def set_up_logging(level: str, form: LogFormat = "text") -> None:
    """One line per event on standard error, times in UTC; libraries speak from warning up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else _text_formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("quire").setLevel(level.upper())


def _text_formatter() -> logging.Formatter:
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


class JsonFormatter(logging.Formatter):
    """An object a line: time, level, logger, message; request_id and exception where there are; and the record's `fields`, which
    whoever logs gives with `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if current := request_id.get():
            content["request_id"] = current
        if record.exc_info:
            content["exception"] = self.formatException(record.exc_info)
        content |= getattr(record, "fields", {})
        return json.dumps(content, default=str)


def speak_up(stream: TextIO | None = None) -> None:
    """A program at a terminal that has set up no logging hears what this package says of its start (the memory plan, arguments
    without effect), as it sees the progress bar. Any logging of the program's own wins."""
    stream = stream or sys.stderr
    logger = logging.getLogger("quire")
    if logging.getLogger().handlers or logger.handlers or logger.level != logging.NOTSET or not stream.isatty():
        return
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
