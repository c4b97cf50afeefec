"""`python -m quire_router`: settings from the environment, then serve until SIGTERM.

Exit codes: 0 after a graceful end, 1 when the start is refused (the last line on standard error says why) or a fault ended it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from quire_router import logs
from quire_router.app import Router
from quire_router.errors import SettingsError
from quire_router.kube import connect
from quire_router.settings import Settings, load


async def _run(settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with connect() as client:
        await Router(settings, client).serve(stop)


def main() -> int:
    try:
        settings = load()
        logs.configure(settings.log_level, settings.log_format)
        asyncio.run(_run(settings))
    except SettingsError as error:
        print(f"quire_router: error: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup:
        logging.getLogger("quire_router").exception("a watcher ended; this is a fault of the router")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
