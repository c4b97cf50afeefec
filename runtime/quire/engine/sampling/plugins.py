"""Logits processors of others: entry points of the group `quire.logits_processors`, loaded only where a flag names them.

What such a processor does wrong is the fault of the one request it was called for; it cannot end the engine (but it runs in
the engine's process, in every step of its requests, so that it can make it slow).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any, Protocol

import torch
from torch import Tensor

from quire.engine.results import Fault
from quire.engine.sampling.pipeline import Row
from quire.errors import ConfigError
from quire.models.lean_torch import import_rest
from quire.request import SamplingParams

GROUP = "quire.logits_processors"

_log = logging.getLogger(__name__)


class CustomProcessor(Protocol):
    """What an entry point is, or gives when it is called without arguments (a class)."""

    def wants(self, params: SamplingParams) -> bool:
        """Whether a request passes through it; asked once per request. `params.extra_args` is its to read."""
        ...

    def __call__(self, logits: Tensor, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams) -> Tensor:
        """Logits [V] float32 in place of those given, which it may change. prompt, answer: token ids so far."""
        ...


class Custom:
    """A processor of others as a stage of the pipeline."""

    def __init__(self, name: str, processor: CustomProcessor) -> None:
        self.name = name
        self._processor = processor

    def wants(self, params: SamplingParams) -> bool:
        try:
            return bool(self._processor.wants(params))
        except Exception:  # noqa: BLE001 - somebody else's code
            _log.warning("the logits processor %s could not say whether it wants a request", self.name, exc_info=True)
            return True  # a request must not go without it unnoticed

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        faults: dict[int, Fault] = {}
        for i, (place, row) in enumerate(zip(where, rows, strict=True)):
            try:
                logits[place] = self._one(logits[place].clone(), row)
            except Exception as exc:  # noqa: BLE001 - somebody else's code
                first = (str(exc).strip().splitlines() or [""])[0][:200]
                faults[i] = Fault(f"the logits processor {self.name} failed: {type(exc).__name__}: {first}")
        return faults

    def _one(self, logits: Tensor, row: Row) -> Tensor:
        shape, prompt, answer = logits.shape, row.tokens[: row.num_prompt], row.tokens[row.num_prompt :]
        changed: Any = self._processor(logits, prompt, answer, row.params)
        if not isinstance(changed, Tensor) or changed.shape != shape:
            got = f"a tensor of shape {tuple(changed.shape)}" if isinstance(changed, Tensor) else type(changed).__name__
            raise TypeError(f"it must return a tensor of shape {tuple(shape)}, got {got}")
        numbers: Tensor = changed.to(logits)
        if bool((torch.isnan(numbers) | (numbers == float("inf"))).any()):
            raise ValueError("it returned logits that are not numbers")
        return numbers


def load_processors(names: Sequence[str]) -> list[Custom]:
    """The processors of these names, in this order; raises ConfigError for one that is not there or cannot be loaded."""
    found: list[Custom] = []
    if names:
        import_rest()  # somebody else's code expects all of torch
    for name in names:
        points = list(entry_points(group=GROUP, name=name))
        if not points:
            known = sorted(entry_points(group=GROUP).names)
            raise ConfigError(
                f"--logits-processors {name}: no installed package has it as entry point of {GROUP}; "
                + (f"there are {', '.join(known)}" if known else "there are none")
            )
        try:
            loaded = points[0].load()
            processor = loaded() if isinstance(loaded, type) else loaded
        except Exception as exc:  # somebody else's code
            raise ConfigError(f"--logits-processors {name}: {points[0].value} cannot be loaded: {exc}") from exc
        if not callable(processor) or not callable(getattr(processor, "wants", None)):
            raise ConfigError(f"--logits-processors {name}: {points[0].value} must be callable and have a method wants")
        found.append(Custom(name, processor))
    return found
