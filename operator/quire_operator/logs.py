"""One line of text or one JSON object a record, on stderr. Set up once, by `__main__`."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

NOISY = ("kopf", "httpx2", "httpx", "httpcore2", "httpcore", "aiohttp.access")


class JsonFormatter(logging.Formatter):
    """`time`, `level`, `logger`, `message`, and `trace` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up(level: str, style: Literal["text", "json"]) -> None:
    """Libraries speak from warnings on, unless the level is debug."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if style == "json" else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.NOTSET if level == "debug" else logging.WARNING)
