"""`quire serve`: the engine's process, then logging and the server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire.config import ServeConfig
from quire.engine.spawn import spawn

if TYPE_CHECKING:
    from quire.server.engine import Engine

_log = logging.getLogger(__name__)


def run(config: ServeConfig) -> int:
    """Serve until stopped; returns the exit status, raises QuireError."""
    spawned = spawn()  # first, as it imports torch meanwhile; what follows takes half as long
    try:
        from quire.engine.client import EngineClient
        from quire.logs import set_up_logging
        from quire.server.run import serve

        set_up_logging(config.log_level, config.log_format)

        async def start() -> Engine:
            return await EngineClient.start(
                config.engine(),
                deadline_s=config.load_timeout,
                log_level=config.log_level,
                log_format=config.log_format,
                spawned=spawned,
            )

        return serve(config, start, say=say if config.log_format == "text" else _log.info)
    finally:
        spawned.end()


def say(text: str) -> None:
    """For the person at the terminal."""
    print(text, flush=True)
