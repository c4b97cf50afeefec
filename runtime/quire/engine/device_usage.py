"""How busy a GPU is and how much of its memory is taken, by whomever. A CPU has neither figure: the machine's own tools count it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

LOOK_S = 1.0
"""Asking the driver takes a good part of a millisecond, and its own figure is that of a window of about this length."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usage:
    """Shares, 0..1; None where there is no such device, or it does not tell."""

    busy: float | None = None
    memory: float | None = None


class DeviceUsage:
    """Reads the device at most once in `LOOK_S`. `busy` needs the package nvidia-ml-py."""

    def __init__(self, device: torch.device, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._looked_s = -LOOK_S
        self._usage = Usage()
        self._tells_busy = True

    def read(self) -> Usage:
        """As of the last look."""
        now_s = self._clock()
        if self._device.type == "cuda" and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._usage = Usage(self._busy(), self._memory())
        return self._usage

    def _busy(self) -> float | None:
        if not self._tells_busy:
            return None
        try:
            return torch.cuda.utilization(self._device) / 100
        except Exception as exc:  # noqa: BLE001  (a figure for people must never stop the engine)
            self._tells_busy = False
            _log.warning("how busy the GPU is cannot be read, and is not in the metrics: %s", exc)
            return None

    def _memory(self) -> float:
        free, total = torch.cuda.mem_get_info(self._device)
        return 1 - free / total
