"""`python serve_scripted.py FOLDER PORT [hold|stuck|refuse|never|told|long]`: the real server process over a scripted engine.

hold: nothing moves until SIGUSR1. stuck: nothing ever moves, and the engine does not end by itself. refuse: the engine cannot start. never: it never comes up. told: answers are the temperature and
max_tokens that the engine was told. long: answers go on to max_tokens. SIGUSR2 kills the engine.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from live_server import ids_of
from quire.config import ServeConfig
from quire.entrypoints import commands
from quire.errors import ModelError
from quire.logs import set_up_logging
from quire.request import AddRequest
from quire.server.flight.engine import Engine
from quire.server.run import serve
from scripted_engine import ScriptedEngine


class StuckEngine(ScriptedEngine):
    """Waits for the end that is made to it."""

    async def close(self, *, at_once: asyncio.Event | None = None) -> None:
        await (at_once or asyncio.Event()).wait()
        await super().close()


async def start() -> Engine:
    mode = sys.argv[3] if len(sys.argv) > 3 else ""

    def reply(request: AddRequest) -> list[int]:
        if mode == "long":
            return ids_of("x") * (request.params.max_tokens or 1)
        return ids_of(f"{request.params.temperature:g} {request.params.max_tokens}" if mode == "told" else "hello")

    engine = (StuckEngine if mode == "stuck" else ScriptedEngine)(reply, max_model_len=4096)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, engine.release)
    loop.add_signal_handler(signal.SIGUSR2, lambda: engine.die("killed by SIGKILL (out of memory?)"))
    if mode in ("hold", "stuck"):
        engine.hold()
    if mode == "refuse":
        raise ModelError("weights do not fit:\n 5 GiB of 4 GiB")
    if mode == "never":
        await asyncio.Event().wait()
    return engine


def run(_: object, **__: object) -> None:
    set_up_logging("info")
    config = ServeConfig.model_validate(
        {"model": sys.argv[1], "host": "127.0.0.1", "port": int(sys.argv[2]), "drain_timeout": float(sys.argv[4])}
    )
    raise SystemExit(serve(config, start, say=lambda text: print(text, flush=True)))


if __name__ == "__main__":
    commands.app = run  # type: ignore[assignment]  # errors leave as they do from the command line
    commands.run(["serve"])
