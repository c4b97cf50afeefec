"""How long each part of a start takes."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_log = logging.getLogger(__name__)


@dataclass
class Stages:
    """Seconds per stage of the start, logged as they pass. A stage may come in parts."""

    seconds: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began
        _log.info("start: %s took %.2f s", name, self.seconds[name])

    def total(self) -> dict[str, float]:
        return self.seconds | {"total": sum(self.seconds.values())}
