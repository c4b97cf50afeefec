"""The form of log lines, the same in the server and in the engine process, whose lines mix on one standard error."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO


def set_up_logging(level: str) -> None:
    """One line per event on standard error, times in UTC; libraries speak from warning up."""
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("quire").setLevel(level.upper())


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
