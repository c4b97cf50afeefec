"""Arguments between tags, each value by itself.

GLM-4.5 on: `<tool_call>name`, then pairs of `<arg_key>` and `<arg_value>`. Qwen 3 Coder, Qwen 3.5, Nemotron 3: `<tool_call><function=name>`, then
`<parameter=key>` for each value. A value is a text as it is where the function's schema wants a text, else JSON. All arguments as one JSON
object are taken too; a grammar makes models write them so, since its texts must be what a schema accepts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from quire.outputs.calls.hermes import CLOSE, OPEN
from quire.outputs.calls.parser import CallParser, Steps
from quire.outputs.calls.scanner import BLANKS, is_json
from quire.text.stream import StopMatcher

KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END = "<function=", "</function>", "<parameter=", "</parameter>"
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NULLS = ("null", "None")
_ANY = frozenset(["any"])
MAX_CHAIN = 32
"""References that lead to references; they may go in circles."""


class _TaggedParser(CallParser):
    """What both share. END: the tag behind the arguments. ENDS: the tags that end a value."""

    MARKERS = (OPEN,)
    END: str
    ENDS: tuple[str, ...]

    def _document(self) -> Steps[None]:
        while True:
            yield from self._until_marker()
            yield from self._attempt(self._call(), OPEN)

    def _call(self) -> Steps[None]:
        raise NotImplementedError

    def _pair(self) -> Steps[str]:
        """Read a key, up to the first character of its value; the first character of its tag is `<` and has been read."""
        raise NotImplementedError

    def _name(self, char: str, ends: str) -> Steps[str]:
        """The function's name from its first character to one of `ends`, which is the last one held."""
        name = ""
        while char not in ends:
            name += char
            self._check_begins(name.rstrip(" \r"))
            char = yield
        return self._known(name.strip())

    def _given(self, name: str) -> Steps[None]:
        """Read all arguments and the tag behind them, from a blank or their first character on."""
        char = yield from self._skip()
        self._unread()
        if char == "{":
            yield from self._arguments(name)
            self._finish()
            yield from self._close(self.END)
            return
        self._start(name)
        texts, before = _texts_of(self._functions[name]), "{"
        while True:
            yield from self._expect("<")
            char = yield
            if char == self.END[1]:
                yield from self._exactly(self.END[2:])
                break
            self._unread()
            key = yield from self._pair()
            self._argue(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            if key in texts:
                yield from self._text(texts[key])
            else:
                self._argue(_json_of((yield from self._until(*self.ENDS))))
        self._argue("{}" if before == "{" else "}")
        self._finish()

    def _until(self, *marks: str) -> Steps[str]:
        matcher, text = StopMatcher(marks), ""
        while matcher.found is None:
            text += matcher.push((yield))
        return text

    def _text(self, nulls: Sequence[str]) -> Steps[None]:
        """A value that is a text, handed on as it comes, unless it may still be one of `nulls`."""
        matcher, text, quote = StopMatcher(self.ENDS), "", '"'
        while matcher.found is None:
            text += matcher.push((yield))
            if text and not any(null.startswith(text) for null in nulls):
                self._argue(quote + json.dumps(text, ensure_ascii=False)[1:-1])
                text, quote, nulls = "", "", ()
        self._argue("null" if text in nulls else quote + json.dumps(text, ensure_ascii=False)[1:])


class Glm45Parser(_TaggedParser):
    """GLM-4.5, 4.6, 4.7."""

    END = CLOSE
    ENDS = (VALUE_END,)

    def _call(self) -> Steps[None]:
        name = yield from self._name((yield from self._skip()), "<{\n")
        if self._held[-1] not in BLANKS:
            self._unread()
        yield from self._given(name)

    def _pair(self) -> Steps[str]:
        yield from self._exactly(KEY[1:])
        key = yield from self._until(KEY_END)
        yield from self._expect("<")
        yield from self._exactly(VALUE[1:])
        return key.strip()


class QwenCoderParser(_TaggedParser):
    """Qwen 3 Coder. One line break next to each tag of a value is no part of it."""

    END = FUNCTION_END
    ENDS = (PARAMETER_END, f"\n{PARAMETER_END}")

    def _call(self) -> Steps[None]:
        yield from self._expect("<")
        yield from self._exactly(FUNCTION[1:])
        name = yield from self._name((yield from self._skip()), ">")
        yield from self._given(name)
        yield from self._close(CLOSE)

    def _pair(self) -> Steps[str]:
        yield from self._exactly(PARAMETER[1:])
        key = yield from self._until(">")
        if (yield) != "\n":
            self._unread()
        return key.strip()


def _texts_of(schema: Any) -> Mapping[str, Sequence[str]]:
    """The parameters whose values are texts, each with the words for null where it may be that too."""
    target = _referred(schema, schema)
    properties = target.get("properties") if isinstance(target, dict) else None
    if not isinstance(properties, dict):
        return {}
    known: dict[int, frozenset[str]] = {}
    kinds = {key: _kinds(one, schema, known) for key, one in properties.items()}
    return {key: _NULLS if "null" in has else () for key, has in kinds.items() if "string" in has <= {"string", "null"}}


def _kinds(schema: Any, whole: Any, known: dict[int, frozenset[str]]) -> frozenset[str]:
    """The types that a schema takes, as it says at its top, where it refers to, or in the parts of a choice; `any` where it says nothing,
    or refers to itself.

    whole: the schema that it is part of, for references. known: what was found, by the schema's identity, so that each is looked at once.
    """
    schema = _referred(schema, whole)
    if id(schema) not in known:
        known[id(schema)] = _ANY
        known[id(schema)] = _kinds_of(schema, lambda part: _kinds(part, whole, known))
    return known[id(schema)]


def _kinds_of(schema: Any, kinds: Callable[[Any], frozenset[str]]) -> frozenset[str]:
    match schema:
        case {"type": str(kind)}:
            return frozenset([kind])
        case {"type": [*names]}:
            return frozenset(map(str, names))
        case {"enum": [*values]}:
            return frozenset().union(*map(_kind_of, values))
        case {"const": value}:
            return _kind_of(value)
        case {"anyOf": [*parts]} | {"oneOf": [*parts]}:
            return frozenset().union(*map(kinds, parts))
        case {"allOf": [*parts]}:
            told = [found for part in parts if "any" not in (found := kinds(part))]
            return frozenset.intersection(*told) if told else _ANY
    return _ANY


def _kind_of(value: object) -> frozenset[str]:
    return frozenset(["string" if isinstance(value, str) else "null" if value is None else "any"])


def _referred(schema: Any, whole: Any) -> Any:
    """The schema that a chain of `$ref` to places in `whole` (`#/$defs/City`, RFC 6901) ends at; None where it ends nowhere."""
    for _ in range(MAX_CHAIN):
        if not isinstance(schema, dict) or not isinstance(at := schema.get("$ref"), str):
            return schema
        if at != "#" and not at.startswith("#/"):
            return None
        schema = whole
        for step in at.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            schema = schema.get(name) if isinstance(schema, dict) else None
    return None


def _json_of(written: str) -> str:
    """A value as JSON: as it is where it is JSON, or almost, else a text."""
    plain = written.strip()
    return plain if is_json(plain) else _PYTHON.get(plain) or json.dumps(written, ensure_ascii=False)
