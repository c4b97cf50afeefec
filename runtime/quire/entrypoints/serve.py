"""`quire serve`: logging, the real engine, the server."""

from __future__ import annotations

from quire.config import ServeConfig
from quire.engine.client import EngineClient
from quire.logs import set_up_logging
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
