"""What the parsers of all formats share.

A parser is a machine over characters, written as generators: `char = yield` is the next one. What it has read and not given out yet
is `_held`; where a text turns out to be no call, its first characters are text and the others are read again. So the outcome depends on
the characters alone and not on how they came.
"""

from __future__ import annotations

import json
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, TypeVar

from quire.outputs.calls.scanner import BLANKS, JsonScanner, NotJsonError, is_json
from quire.outputs.parts import CallArguments, CallStart, Part, Text
from quire.text.stream import StopMatcher

T = TypeVar("T")
Steps = Generator[None, str, T]

NAME_KEY = "name"
ARGUMENT_KEYS = ("arguments", "parameters")


class NoCallError(Exception):
    """The text does not go on as a call of a function of the request."""


class CallParser(ABC):
    """Feed it with `push`, end with `flush`.

    functions: the schema of the parameters of each function that may be called, by name. one_call: nothing is read behind the first
    call; then `enough` is True. MARKERS begin calls in a text; without
    markers calls come at the beginning of the text only.
    """

    MARKERS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, functions: Mapping[str, Any], *, one_call: bool = False) -> None:
        self.num_started = 0
        self.num_complete = 0
        self._functions = functions
        self._one_call = one_call
        self._input: deque[str] = deque()
        self._held = ""
        self._blanks: str | None = ""  # at the beginning and behind calls: blanks that are text if text follows
        self._in_text = False
        self._calling = False  # between the start of a call and its last character
        self._closing = False  # between a whole call and the mark of its end
        self._parts: list[Part] = []
        self._firsts = frozenset(marker[0] for marker in self.MARKERS)
        self._run = self._document()
        next(self._run)

    @property
    def complete(self) -> bool:
        """There are calls, and all of them are whole."""
        return 0 < self.num_started == self.num_complete

    @property
    def enough(self) -> bool:
        """The one call that is wanted is whole."""
        return self._one_call and self.num_complete > 0

    def push(self, text: str) -> list[Part]:
        """The parts that are certain now."""
        if self._in_text and not self._held and self._blanks is None and self._firsts.isdisjoint(text):
            return [Text(text)] if text else []
        self._input.extend(text)
        while self._input and not self.enough:
            char = self._input.popleft()
            self._held += char
            self._run.send(char)
        parts, self._parts = self._parts, []
        return parts

    def flush(self) -> list[Part]:
        """The text has ended: what might have become a call is text."""
        if not self._closing and not self._calling:
            self._say(self._held)
        if self._blanks and not self.num_started:
            self._add(Text(self._blanks))
        parts, self._parts = self._parts, []
        return parts

    @staticmethod
    def new_id() -> str:
        """An id for a call."""
        return f"call_{secrets.token_hex(12)}"

    @abstractmethod
    def _document(self) -> Steps[None]:
        """The machine; it never ends."""

    # --- what goes out ---

    def _add(self, part: Part) -> None:
        last = self._parts[-1] if self._parts else None
        match part, last:
            case (Text(), Text()):
                self._parts[-1] = Text(last.text + part.text)
            case (CallArguments(), CallArguments()) if part.index == last.index:
                self._parts[-1] = CallArguments(part.index, last.text + part.text)
            case _:
                self._parts.append(part)

    def _say(self, text: str) -> None:
        """The first characters of what is held are text."""
        self._held = self._held[len(text) :]
        if self._blanks is not None:
            text = self._blanks + text
            self._blanks = text if not text.strip(BLANKS) else None
        if self._blanks is None and text:
            self._add(Text(text))

    def _start(self, name: str) -> None:
        """What is held begins a call."""
        self._held, self._blanks, self._calling = "", "", True
        self._add(CallStart(self.num_started, self.new_id(), name))
        self.num_started += 1

    def _argue(self, text: str) -> None:
        """What is held is this part of the arguments."""
        self._held = ""
        self._add(CallArguments(self.num_started - 1, text))

    def _finish(self) -> None:
        """The call is whole."""
        self._held, self._calling = "", False
        self.num_complete += 1

    def _give_up(self, begun: int, said: str) -> None:
        """No call after all. begun: calls that had started before. said: what is text for certain, the rest is read again."""
        if self._calling:
            self._blanks = None  # the call stays as far as it came, what broke it is text
        if self.num_started > begun:
            said = ""
        self._closing = self._calling = False
        self._say(said)
        self._reread()

    def _reread(self) -> None:
        self._input.extendleft(reversed(self._held))
        self._held = ""

    # --- what comes in ---

    def _until_marker(self) -> Steps[str]:
        """Pass text on until a marker is held, and nothing else; which one."""
        matcher = StopMatcher(self.MARKERS)
        self._in_text = True
        while matcher.found is None:
            char = yield
            if text := matcher.push(char):
                self._say(text)
        self._in_text = False
        return matcher.found

    def _attempt(self, call: Steps[None], said: str) -> Steps[bool]:
        """Read calls whose first characters, `said`, are held. False where there is none after all."""
        begun = self.num_started
        try:
            yield from call
        except (NoCallError, NotJsonError):
            self._give_up(begun, said)
            return False
        return True

    def _skip(self) -> Steps[str]:
        """The next character that is no blank."""
        while True:
            char = yield
            if char not in BLANKS:
                return char

    def _expect(self, wanted: str) -> Steps[None]:
        if (yield from self._skip()) != wanted:
            raise NoCallError

    def _exactly(self, text: str) -> Steps[None]:
        for wanted in text:
            if (yield) != wanted:
                raise NoCallError

    def _close(self, marker: str) -> Steps[None]:
        """Read the marker that ends a call, with blanks before it, if it is there."""
        self._closing, matched = True, 0
        char = yield from self._skip()
        while char == marker[matched]:
            matched += 1
            if matched == len(marker):
                self._held = ""
                break
            char = yield
        self._reread()
        self._closing = False

    def _string(self) -> Steps[str]:
        """The value of a JSON string whose first quote has been read."""
        scanner, written = JsonScanner(), ['["']
        for char in '["':
            scanner.feed(char)
        while True:
            char = yield
            written.append(scanner.feed(char))
            if not scanner.in_string:
                value: str = json.loads("".join(written) + "]")[0]
                return value

    def _value(self, first: str, sink: Callable[[str], None]) -> Steps[None]:
        """Read a value that begins with `first`, which is a bracket, and hand it on as it comes."""
        scanner = JsonScanner()
        sink(scanner.feed(first))
        while not scanner.done:
            char = yield
            sink(scanner.feed(char))

    def _any_value(self) -> Steps[None]:
        """Read a value that means nothing here."""
        char = yield from self._skip()
        if char == '"':
            yield from self._string()
        elif char in "{[":
            yield from self._value(char, lambda _: None)
        else:
            while char not in ",}" + BLANKS:
                char = yield
            self._unread()

    def _unread(self) -> None:
        self._input.appendleft(self._held[-1])
        self._held = self._held[:-1]

    def _check_begins(self, name: str) -> None:
        """Whether this may become the name of a function."""
        if not any(known.startswith(name) for known in self._functions):
            raise NoCallError

    def _known(self, name: str) -> str:
        if name not in self._functions:
            raise NoCallError
        return name

    def _arguments(self, name: str | None) -> Steps[str]:
        """Read the arguments; where the function is known the call starts here. What they are, for calls that start later."""
        char = yield from self._skip()
        written: list[str] = []
        if char == "{":
            if name is not None:
                self._start(name)
            yield from self._value(char, written.append if name is None else self._argue)
            return "".join(written)
        if char == '"':  # some models write JSON into a string
            text = yield from self._string()
            if not (text.lstrip(BLANKS).startswith("{") and is_json(text)):
                raise NoCallError
        elif char == "n":
            yield from self._exactly("ull")
            text = "{}"
        else:
            raise NoCallError
        if name is not None:
            self._start(name)
            self._argue(text)
        return text

    def _object_call(self) -> Steps[None]:
        """Read a call that is a JSON object with name and arguments, from its first bracket or a blank on."""
        yield from self._expect("{")
        name: str | None = None
        arguments: str | None = None
        while True:
            yield from self._expect('"')
            key = yield from self._string()
            yield from self._expect(":")
            if key == NAME_KEY and name is None:
                yield from self._expect('"')
                name = self._known((yield from self._string()))
                if arguments is not None:
                    self._start(name)
                    self._argue(arguments)
            elif key in ARGUMENT_KEYS and arguments is None:
                arguments = yield from self._arguments(name)
            else:
                yield from self._any_value()
            char = yield from self._skip()
            if char == "}":
                break
            if char != ",":
                raise NoCallError
        if name is None:
            raise NoCallError
        if arguments is None:
            self._start(name)
            self._argue("{}")
        self._finish()
