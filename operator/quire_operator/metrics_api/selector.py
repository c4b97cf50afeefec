"""Kubernetes label selectors, equality and set based: `a=b,c!=d,e in (f,g),h notin (i),j,!k`. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE = r"[A-Za-z0-9._-]*"
_SET = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL = re.compile(rf"({_NAME})\s*(==|=|!=)\s*({_VALUE})")
_EXISTS = re.compile(rf"(!?)\s*({_NAME})")


@dataclass(frozen=True)
class Requirement:
    """`values` empty with `negated` or not: about existence alone."""

    key: str
    values: frozenset[str] | None
    negated: bool

    def holds(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        if self.values is None:
            return (found is None) is self.negated
        return (found in self.values) is not self.negated


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """Raises ValueError that names the part that cannot be read."""
    return tuple(_requirement(part) for part in _parts(text))


def selects(requirements: tuple[Requirement, ...], labels: Mapping[str, str]) -> bool:
    """All of them hold; none selects everything."""
    return all(requirement.holds(labels) for requirement in requirements)


def _parts(text: str) -> list[str]:
    """Split at commas outside parentheses."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _requirement(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        values = frozenset(value.strip() for value in match[3].split(","))
        return Requirement(match[1], values, negated=match[2] == "notin")
    if match := _EQUAL.fullmatch(part):
        return Requirement(match[1], frozenset((match[3],)), negated=match[2] == "!=")
    if match := _EXISTS.fullmatch(part):
        return Requirement(match[2], None, negated=match[1] == "!")
    raise ValueError(
        f"label selector part {part!r} cannot be read: expected key=value, key!=value, key in (a,b), key or !key"
    )
