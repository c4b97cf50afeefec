"""`quire serve`: logging, the real engine, the server."""

from __future__ import annotations

import logging
import sys
import time

from quire.config import ServeConfig
from quire.engine.client import EngineClient
from quire.server.engine import Engine
from quire.server.run import serve


def run(config: ServeConfig) -> int:
    """Serve until stopped; returns the exit status, raises QuireError."""
    set_up_logging(config.log_level)

    async def start() -> Engine:
        return await EngineClient.start(config.engine(), deadline_s=config.load_timeout, log_level=config.log_level)

    return serve(config, start, say=say)


def say(text: str) -> None:
    """For the person at the terminal."""
    print(text, flush=True)


def set_up_logging(level: str) -> None:
    """One line per event on standard error, times in UTC; libraries speak from warning up."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("quire").setLevel(level.upper())
