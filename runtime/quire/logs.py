"""The form of log lines, the same in the server and in the engine process, whose lines mix on one standard error."""

from __future__ import annotations

import logging
import sys
import time


def set_up_logging(level: str) -> None:
    """One line per event on standard error, times in UTC; libraries speak from warning up."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("quire").setLevel(level.upper())
