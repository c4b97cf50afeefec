"""Reads gauges out of Prometheus' text format. Only what is asked for: an engine's page is long and read every 2 s. Pure.

A metric that is not on the page, or whose value is not a finite number, is absent from the answer: never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping


def read_gauges(text: str, wanted: Mapping[str, Callable[[Iterable[float]], float]]) -> dict[str, float]:
    """`wanted` maps a metric's name to how its series (one per model name) become one number."""
    series: dict[str, list[float]] = {}
    for line in text.split("\n"):
        if not line or line[0] == "#":
            continue
        name, rest = _split(line)
        if name not in wanted:
            continue
        value = _value(rest)
        if value is not None:
            series.setdefault(name, []).append(value)
    return {name: wanted[name](values) for name, values in series.items()}


def _split(line: str) -> tuple[str, str]:
    for index, character in enumerate(line):
        if character in "{ \t":
            return line[:index], line[index:]
    return line, ""


def _value(rest: str) -> float | None:
    rest = rest.lstrip()
    if rest.startswith("{"):
        end = _end_of_labels(rest)
        if end is None:
            return None
        rest = rest[end:]
    fields = rest.split()
    if not fields:
        return None
    try:
        value = float(fields[0])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _end_of_labels(text: str) -> int | None:
    """Index after the closing brace; braces and quotes inside a label's value do not count."""
    quoted = escaped = False
    for index, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "}" and not quoted:
            return index + 1
    return None
