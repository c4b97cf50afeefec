"""Read fields of config.json and of GGUF metadata strictly: a missing or odd value is a ModelError naming file and field."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import ModelError

MOST_PARTS = 4096
"""Layers, or experts of a layer: some ten times what any model has, so that a damaged count is an error and no endless loop."""
MOST_EXPERTS = 1 << 17
"""Of all layers together: five times what any model has. Each has weights with names of their own."""
_COUNT = re.compile(r"(layers|experts)$|^n_layer$")


@dataclass(frozen=True)
class Fields:
    """A mapping from a file, with checked access."""

    values: dict[str, Any]
    path: Path

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.bad(key, value, "a positive integer")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """How many parts there are that are gone through one by one: a positive integer up to MOST_PARTS."""
        value = self.integer(key, default)
        if value > MOST_PARTS:
            raise self.bad(key, value, f"at most {MOST_PARTS}")
        return value

    def check_counts(self) -> None:
        """Raises ModelError where there are more layers or experts than `count` allows, by whatever name and in whatever section: for
        code of others, which makes a list of them."""
        layers, experts = 1, 0
        for config, key in self._counts():
            if key.endswith("experts"):
                experts = max(experts, config.count(key))
            else:
                layers = max(layers, config.count(key))
        check_experts(self.path, layers, experts)

    def _counts(self) -> Iterator[tuple[Fields, str]]:
        """Fields that are positive integers and whose names end with layers or experts: where, and the name."""
        for key, value in self.values.items():
            if isinstance(value, dict):
                yield from Fields(value, self.path)._counts()
            elif isinstance(value, int) and value > 0 and value is not True and _COUNT.search(key):
                yield self, key

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.bad(key, value, "a positive number")
        return float(value)

    def maybe_integer(self, key: str) -> int | None:
        """A positive integer, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.integer(key)

    def maybe_number(self, key: str) -> float | None:
        """A positive number, or None where it is absent or null."""
        return None if self.values.get(key) is None else self.number(key)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def token_ids(self, key: str) -> tuple[int, ...]:
        """One id, a list of ids, or nothing."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(i, bool) or not isinstance(i, int) or i < 0 for i in ids):
            raise self.bad(key, value, "a token id or a list of token ids")
        return tuple(ids)

    def items(self, key: str, length: int) -> list[Any] | None:
        """A list of at least `length` items, cut to it; None where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self.bad(key, value, f"a list of {length} items")
        return value[:length]

    def section(self, key: str) -> Fields | None:
        """A nested mapping, or None where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.bad(key, value, "a mapping")
        return Fields(value, self.path)

    def bad(self, key: str, value: object, bound: str) -> ModelError:
        return ModelError(f"{self.path}: {key} must be {bound}, got {value!r}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is not None:
            return value
        if default is None:
            raise ModelError(f"{self.path}: {key} is missing; the file is incomplete or of another architecture")
        return default


def check_experts(path: Path, layers: int, experts: int) -> None:
    """Raises ModelError where `experts` of each layer are too many together."""
    if layers * experts > MOST_EXPERTS:
        raise ModelError(
            f"{path}: {layers} layers of {experts} experts are more than the {MOST_EXPERTS} experts a model may have; "
            "the file is damaged"
        )


def read_json(path: Path) -> Fields:
    """A JSON file that holds a mapping; raises ModelError naming the file and the place."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ModelError(f"cannot read {path}: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise ModelError(f"{path} is not valid JSON ({exc}); download it again") from exc
    if not isinstance(values, dict):
        raise ModelError(f"{path} must hold a JSON object; download it again")
    return Fields(values, path)
