"""What a condition is made of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from quire_operator.api import Condition
from quire_operator.status.facts import Facts

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True)
class Finding:
    """A condition before it has a time."""

    status: Truth
    reason: str
    message: str
    held_generation: int | None = None


def previous(facts: Facts, kind: str) -> Condition | None:
    """The condition as reported last."""
    return facts.owner.status.condition(kind)
