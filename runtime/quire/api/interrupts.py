"""Ctrl-C during a step: the step ends first, so that an interrupt never leaves the engine half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[Callable[[], None]]:
    """Hold SIGINT back; gives a function that raises KeyboardInterrupt if one came. A second one is raised at once.

    Does nothing outside the main thread and where the program has a handler of its own.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    held = 0

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal held
        held += 1
        if held > 1:
            raise KeyboardInterrupt

    def check() -> None:
        nonlocal held
        if held:
            held = 0
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, hold)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    check()
