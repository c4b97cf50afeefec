"""What is made of files, and made again when they change.

Files are looked at when the value is asked for, once a second at most. Where they cannot be read, or hold nothing good, the value stays
as it was, and each fault is told once in the log.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from quire.errors import ConfigError

_log = logging.getLogger(__name__)

LOOK_S = 1.0
RETRY_S = 30.0
"""A bad file that does not change is read again so seldom: what was wrong may lie beside it, such as its mode."""

T = TypeVar("T")
Stamp = tuple[int, int, int]


class Watched(Generic[T]):
    """See the module. what: names the value in the log, in the singular. read: raises ConfigError; the first time that passes."""

    def __init__(
        self, what: str, files: Sequence[Path], read: Callable[[], T], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._files = files
        self._read = read
        self._clock = clock
        self._looked_s = clock()
        self._stamps = [_stamp(file) for file in files]  # before reading: a change in between is seen the next time
        self._failed: list[Stamp | None] | None = None
        self._failed_s = 0.0
        self._told = ""
        self._value = read()

    @property
    def value(self) -> T:
        """As of the files now, or the last good one."""
        now_s = self._clock()
        if self._files and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._look()
        return self._value

    def _look(self) -> None:
        stamps = [_stamp(file) for file in self._files]
        if stamps == self._stamps or (stamps == self._failed and self._looked_s - self._failed_s < RETRY_S):
            return
        try:
            self._value = self._read()
        except ConfigError as exc:
            self._failed, self._failed_s = stamps, self._looked_s
            if str(exc) != self._told:
                self._told = str(exc)
                _log.error("%s; %s read before stays in use", exc, self._what)
            return
        self._stamps, self._failed, self._told = stamps, None, ""
        _log.info("read %s again: %s", self._what, ", ".join(map(str, self._files)))


def read_text(file: Path, *, flag: str, max_bytes: int) -> str:
    """The text of a file that a flag names; raises ConfigError."""
    try:
        size = os.stat(file).st_size
        if size > max_bytes:
            raise ConfigError(f"{flag} {file} has {size} bytes, but at most {max_bytes} are read")
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        cause = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ConfigError(f"{flag} {file} cannot be read: {cause}") from None


def _stamp(file: Path) -> Stamp | None:
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
