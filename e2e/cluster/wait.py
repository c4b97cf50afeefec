"""Waiting with a deadline, for something named, with the log that explains why it did not come."""

import time
from collections.abc import Callable
from pathlib import Path

from cluster.errors import DeadlineError
from cluster.run import log_tail


def until(
    what: str,
    look: Callable[[], str | None],
    *,
    deadline_s: float,
    interval_s: float = 0.05,
    log: Path | None = None,
) -> None:
    """Call `look` until it returns None; otherwise it returns what is still missing. Raises DeadlineError with that and the log's end."""
    end = time.monotonic() + deadline_s
    while (missing := look()) is not None:
        if time.monotonic() >= end:
            where = f"; its log {log} ends:\n{log_tail(log)}" if log else ""
            raise DeadlineError(f"{what} did not happen within {deadline_s:.0f} s: {missing}{where}")
        time.sleep(interval_s)
