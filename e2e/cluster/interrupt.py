"""TERM and HUP end a command as Ctrl-C does, by KeyboardInterrupt: what it started is ended, and its files are in order."""

import signal
from types import FrameType

_NUMBERS = (signal.SIGTERM, signal.SIGHUP)


def install() -> None:
    """Call once, in the main thread. After the first signal further ones do nothing, so that cleaning up is not cut off.

    A signal that is ignored stays so: that is how nohup and shells protect a command in the background.
    """
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def _end(number: int, frame: FrameType | None) -> None:
    for other in _NUMBERS:
        if signal.getsignal(other) is _end:
            signal.signal(other, _nothing)
    raise KeyboardInterrupt


def _nothing(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which programs started from now on would inherit."""
