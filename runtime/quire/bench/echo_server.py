"""`quire serve` over an engine that computes nothing: `python -m quire.bench.echo_server INTERVAL_S JSON`, started by `quire bench stream`.

Everything but the engine's process is what `quire serve` runs. JSON: flags as typed, and the path of a `--config` file or null.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from quire.bench.report import say
from quire.config import ServeConfig, load
from quire.engine.client import EngineClient
from quire.engine.spawn import spawn
from quire.logs import set_up_logging
from quire.server.flight.engine import Engine
from quire.server.run import serve


def main(interval_s: str, flags: dict[str, Any], config_file: str | None) -> int:
    """Returns the exit status; raises QuireError."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in flags.items()}
    config = load(ServeConfig, flags=given, environ=os.environ, file=Path(config_file) if config_file else None)
    set_up_logging(config.log_level, config.log_format)

    async def start() -> Engine:
        return await EngineClient.start(config.engine(), spawned=spawn("quire.bench.echo_engine", interval_s))

    return serve(config, start, say=say)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *json.loads(sys.argv[2])))
