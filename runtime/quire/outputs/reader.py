"""The parts of one answer: its text goes through the reasoning splitter, then through the parser of calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.outputs.calls.parser import CallParser
from quire.outputs.parts import Part, Text
from quire.outputs.reasoning import ReasoningSplitter


class Reader:
    """Feed it with `push`. Without splitter and parser everything is text."""

    def __init__(self, splitter: ReasoningSplitter | None = None, parser: CallParser | None = None) -> None:
        self._splitter = splitter
        self._parser = parser

    def push(self, text: str, *, final: bool = False) -> list[Part]:
        """The parts that are certain now. final: the text has ended."""
        splitter, parser = self._splitter, self._parser
        parts: list[Part] = [Text(text)] if text else []
        if splitter is not None:
            parts = splitter.push(text) if text else []
            parts += splitter.flush() if final else []
        if parser is None:
            return parts
        found: list[Part] = []
        for part in parts:
            found += parser.push(part.text) if isinstance(part, Text) else [part]
        return found + (parser.flush() if final else [])

    @property
    def enough(self) -> bool:
        """The one call that is wanted is whole."""
        return self._parser is not None and self._parser.enough

    @property
    def called(self) -> bool:
        """The answer has calls, all of them whole."""
        return self._parser is not None and self._parser.complete


@dataclass(frozen=True)
class Reading:
    """How the answers of a request are read: a reader for each.

    reasons: they begin inside of reasoning (True), may open it (False), have none (None). functions: the schemas of the parameters of
    the functions that may be called, by name. specials: marks that must be seen though they are special tokens.
    """

    reasons: bool | None = None
    parser: type[CallParser] | None = None
    functions: Mapping[str, Any] | None = None
    one_call: bool = False
    specials: frozenset[int] = frozenset()

    def reader(self) -> Reader:
        """For one answer."""
        splitter = None if self.reasons is None else ReasoningSplitter(inside=self.reasons)
        parser = None if self.parser is None else self.parser(self.functions or {}, one_call=self.one_call)
        return Reader(splitter, parser)
