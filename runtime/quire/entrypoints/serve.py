"""`quire serve`: the server, beside the engine's process that `cli` has begun with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from quire.config import ServeConfig
from quire.engine.client import EngineClient
from quire.engine.spawn import Spawned
from quire.logs import set_up_logging
from quire.server.run import serve

if TYPE_CHECKING:
    from quire.server.flight.engine import Engine

_log = logging.getLogger(__name__)


def run(config: ServeConfig, spawned: Spawned | None = None) -> int:
    """Serve until stopped; returns the exit status, raises QuireError. spawned: the engine's process; default: a new one."""
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


def say(text: str) -> None:
    """For the person at the terminal."""
    print(text, flush=True)
