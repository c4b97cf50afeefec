"""Progress lines with seconds, so that nobody wonders what a long step does. Goes to stderr: stdout belongs to results."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

HEARTBEAT_S = 15.0
"""A step that takes longer says so every so often; CI systems cut silent jobs."""


class Progress:
    """Prints `[ total] message (step seconds)`. Thread-safe: several nodes report at the same time."""

    def __init__(self, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._out = out or sys.stderr
        self._clock = clock
        self._start = clock()
        self._lock = threading.Lock()

    def say(self, message: str) -> None:
        """Print one line with the seconds since the start."""
        with self._lock:
            print(f"[{self._clock() - self._start:6.1f} s] {message}", file=self._out, flush=True)

    @contextmanager
    def step(self, message: str, detail: Callable[[], str] | None = None) -> Iterator[None]:
        """Time the block; while it runs, repeat the message every HEARTBEAT_S with what `detail` says."""
        began = self._clock()
        done = threading.Event()

        def heartbeat() -> None:
            while not done.wait(HEARTBEAT_S):
                extra = f": {detail()}" if detail else ""
                self.say(f"{message} ... still at it after {self._clock() - began:.0f} s{extra}")

        thread = threading.Thread(target=heartbeat, daemon=True, name="progress")
        thread.start()
        try:
            yield
        except BaseException:
            self.say(f"{message}: FAILED after {self._clock() - began:.1f} s")
            raise
        finally:
            done.set()
            thread.join()
        self.say(f"{message} ({self._clock() - began:.1f} s)")
