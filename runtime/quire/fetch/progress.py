"""How far a download is, in lines that people read in `kubectl logs`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

INTERVAL_S = 10.0


class Progress:
    """Told of bytes by many threads; says a line every ten seconds at most. `clock` gives seconds."""

    def __init__(self, total_bytes: int, say: Callable[[str], None], clock: Callable[[], float] = monotonic) -> None:
        self._total = total_bytes
        self._say = say
        self._clock = clock
        self._lock = threading.Lock()
        self._have = 0
        self._began = self._said = clock()
        self._resumed: int | None = None

    def begin(self) -> None:
        """What is there by now was there before: it does not count for the speed."""
        with self._lock:
            self._began = self._said = self._clock()
            self._resumed = self._have

    def gained(self, count: int) -> None:
        """`count` bytes more (or less, if negative) are there."""
        with self._lock:
            self._have += count
            now = self._clock()
            if now - self._said >= INTERVAL_S:
                self._said = now
                self._say(self._line(now))

    def last(self) -> str:
        """For the end."""
        with self._lock:
            return self._line(self._clock())

    def _line(self, now: float) -> str:
        speed = max(self._have - (self._resumed or 0), 0) / max(now - self._began, 1e-3)
        parts = [f"{self._have / 1e6:.0f} MB"]
        if self._total:
            parts = [f"{self._have / 1e6:.0f} of {self._total / 1e6:.0f} MB ({min(self._have / self._total, 1.0):.0%})"]
        parts.append(f"{speed / 1e6:.1f} MB/s")
        if self._total > self._have and speed > 0:
            parts.append(f"{(self._total - self._have) / speed:.0f} s left")
        return ", ".join(parts)
