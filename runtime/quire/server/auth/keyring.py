"""The keys of the flags and of the key file, which is read again when it changes.

The file is looked at when a request comes, once a second at most. A file that cannot be read or has a bad line leaves the keys as they
were, and is told once in the log; at the start it ends the start.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from quire.errors import ConfigError
from quire.server.auth.keys import Key, KeySet, Principal, digest_of, keys_of
from quire.server.auth.rates import Limits

_log = logging.getLogger(__name__)

LOOK_S = 1.0
MAX_FILE_BYTES = 32 << 20

Stamp = tuple[int, int, int]


class Keyring:
    """See the module. keys: of the flags, as they are. Raises ConfigError."""

    def __init__(
        self,
        keys: Sequence[str],
        file: str | None,
        *,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = [Key(digest_of(key), Principal(f"key-{n}", limits)) for n, key in enumerate(keys, 1)]
        self._file = Path(file) if file is not None else None
        self._limits = limits
        self._clock = clock
        self._looked_s = clock()
        self._stamp: Stamp | None = None
        self._told = ""
        self._set = KeySet(self._own)
        if self._file is not None:
            self._stamp = self._stamped(self._file)
            self._set = self._read(self._file)

    def find(self, given: bytes) -> Principal | None:
        """Whose key this is."""
        self._look()
        return self._set.find(given)

    def _look(self) -> None:
        now_s = self._clock()
        if self._file is None or now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        try:
            if (stamp := self._stamped(self._file)) == self._stamp:
                return
            keys = self._read(self._file)
        except ConfigError as exc:
            if str(exc) != self._told:
                self._told = str(exc)
                _log.error("%s; the keys stay as they were", exc)
            return
        self._set, self._stamp, self._told = keys, stamp, ""
        _log.info("read %s again: %d keys", self._file, len(keys))

    def _stamped(self, file: Path) -> Stamp:
        try:
            stat = os.stat(file)
        except OSError as exc:
            raise ConfigError(f"--api-key-file {file} cannot be read: {exc.strerror}") from None
        if stat.st_size > MAX_FILE_BYTES:
            raise ConfigError(f"--api-key-file {file} has {stat.st_size} bytes, but at most {MAX_FILE_BYTES} are read")
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self, file: Path) -> KeySet:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as exc:
            cause = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
            raise ConfigError(f"--api-key-file {file} cannot be read: {cause}") from None
        return KeySet([*self._own, *keys_of(text, source=f"--api-key-file {file}", defaults=self._limits)])
