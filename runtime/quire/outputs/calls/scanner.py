"""One JSON object or array, character by character (RFC 8259)."""

from __future__ import annotations

import json
import re

from quire.structured import MAX_DEPTH

BLANKS = " \t\n\r"
_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_SCALAR_BEGINS = frozenset("tfn-0123456789")
_SCALAR_ENDS = frozenset(",]}" + BLANKS)
_ESCAPES = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")


class NotJsonError(ValueError):
    """The text does not go on as JSON."""


class JsonScanner:
    """`feed` all characters from the bracket that opens the value; `done` after the one that closes it."""

    def __init__(self) -> None:
        self.done = False
        self._open: list[str] = []
        self._wanted = "value"  # or first_value, key, first_key, colon, next
        self.in_string = False
        self._is_key = False
        self._escape = ""
        self._scalar = ""

    def feed(self, char: str) -> str:
        """The character as it goes on: control characters inside of strings, which JSON does not take, are escaped.

        Raises NotJsonError.
        """
        if self.in_string:
            return self._inside_string(char)
        if self._scalar:
            if char not in _SCALAR_ENDS:
                self._scalar += char
                return char
            if _SCALAR.fullmatch(self._scalar) is None:
                raise NotJsonError
            self._scalar, self._wanted = "", "next"
        if char not in BLANKS:
            self._structure(char)
        return char

    def _structure(self, char: str) -> None:
        wanted = self._wanted
        if not self._open and char not in "{[":
            raise NotJsonError
        if char == '"' and wanted in ("value", "first_value", "key", "first_key"):
            self.in_string, self._is_key = True, wanted in ("key", "first_key")
        elif char in "{[" and wanted in ("value", "first_value"):
            if len(self._open) == MAX_DEPTH:
                raise NotJsonError
            self._open.append(char)
            self._wanted = "first_key" if char == "{" else "first_value"
        elif char in "}]":
            if wanted not in ("next", "first_key" if char == "}" else "first_value"):
                raise NotJsonError
            if self._open.pop() + char not in ("{}", "[]"):
                raise NotJsonError
            self._wanted, self.done = "next", not self._open
        elif char == ":" and wanted == "colon":
            self._wanted = "value"
        elif char == "," and wanted == "next":
            self._wanted = "key" if self._open[-1] == "{" else "value"
        elif char in _SCALAR_BEGINS and wanted in ("value", "first_value"):
            self._scalar = char
        else:
            raise NotJsonError

    def _inside_string(self, char: str) -> str:
        if self._escape:
            self._escape = self._rest_of_escape(char)
        elif char == "\\":
            self._escape = char
        elif char == '"':
            self.in_string, self._wanted = False, "colon" if self._is_key else "next"
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _rest_of_escape(self, char: str) -> str:
        if self._escape == "\\":
            if char in _ESCAPES:
                return ""
            if char == "u":
                return "\\u"
        elif char in _HEX:
            return "" if len(self._escape) == 5 else self._escape + char
        raise NotJsonError
