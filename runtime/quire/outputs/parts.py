"""What the text of an answer is made of: text, reasoning, calls of functions. Endpoints write it each in their own way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Text:
    """For the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What the model thought before."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts the calls of an answer from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call that began last; all of them joined are one JSON object."""

    index: int
    text: str


Part = Text | Reasoning | CallStart | CallArguments


@dataclass(slots=True)
class Call:
    """A call as a whole. arguments: JSON, or the beginning of one where the answer was cut."""

    id: str
    name: str
    arguments: str = ""


@dataclass(slots=True)
class Message:
    """An answer as a whole: all parts joined."""

    text: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)

    def add(self, parts: Iterable[Part]) -> None:
        """Join parts in order."""
        for part in parts:
            match part:
                case Text():
                    self.text += part.text
                case Reasoning():
                    self.reasoning += part.text
                case CallStart():
                    self.calls.append(Call(part.id, part.name))
                case CallArguments():
                    self.calls[part.index].arguments += part.text
