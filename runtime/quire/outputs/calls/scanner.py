"""One JSON object or array, character by character (RFC 8259), as far as it can be sent on (RFC 7493): no number is beyond a double, and
no half of a surrogate pair is alone."""

from __future__ import annotations

import json
import math
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
        self._half = False  # the last character of the string is the first half of a pair
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
            if _SCALAR.fullmatch(self._scalar) is None or not _is_finite(self._scalar):
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
        elif self._half:
            raise NotJsonError
        elif char == '"':
            self.in_string, self._wanted = False, "colon" if self._is_key else "next"
        elif char < " ":
            return json.dumps(char)[1:-1]
        return char

    def _rest_of_escape(self, char: str) -> str:
        if self._escape == "\\":
            if char in _ESCAPES and not self._half:
                return ""
            if char == "u":
                return "\\u"
        elif char in _HEX:
            if len(self._escape) < 5:
                return self._escape + char
            self._pair(int(self._escape[2:] + char, 16))
            return ""
        raise NotJsonError

    def _pair(self, unit: int) -> None:
        """A unit of UTF-16 that an escape spells: the second half of a pair comes behind the first one, and nowhere else."""
        if self._half != (0xDC00 <= unit <= 0xDFFF):
            raise NotJsonError
        self._half = 0xD800 <= unit <= 0xDBFF


def is_json(text: str) -> bool:
    """Whether a text is one JSON value that can be sent on, of less than MAX_DEPTH levels."""
    scanner = JsonScanner()
    try:
        for char in f"[{text}]":
            scanner.feed(char)
        json.loads(text)  # one value, and none of the control characters that the scanner escapes
    except ValueError:
        return False
    return scanner.done


def _is_finite(scalar: str) -> bool:
    return scalar[0] in "tfn" or math.isfinite(float(scalar))
