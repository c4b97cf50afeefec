"""Kinds of values that a request has: what programs write becomes the plain value that travels to the engine.

A NumPy integer is an integer, a list of texts a tuple, one text a list of one. What is of another kind (a number with a fraction
for an integer, a word for true or false) raises TypeError or ValueError, an integer beyond 64 bits OverflowError: nothing else
may reach the engine, which reads strictly.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """words: what the value must be, after "must be". convert: to the plain value; raises as the module says."""

    words: str
    convert: Callable[[Any], Any]


def optional(kind: Kind) -> Kind:
    """The same, or None."""
    convert = kind.convert
    return Kind(kind.words, lambda value: None if value is None else convert(value))


def instance_of(cls: type, words: str) -> Kind:
    """Values of a class, as they are."""

    def convert(value: Any) -> Any:
        if not isinstance(value, cls):
            raise TypeError
        return value

    return Kind(words, convert)


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    plain = int(operator.index(value))
    if not _LEAST <= plain <= _MOST:
        raise OverflowError
    return plain


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise TypeError
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _texts(value: Any) -> tuple[str, ...]:
    # One string, as programs write it for other engines, is one string and not its characters; None is their empty list.
    given = () if value is None else (value,) if isinstance(value, str) else tuple(value)
    for text in given:
        if not isinstance(text, str):
            raise TypeError
        text.encode()  # half of a surrogate pair cannot travel
    return tuple(map(str, given))


def _ids(value: Any) -> tuple[int, ...]:
    given = () if value is None else tuple(value)
    plain = set(map(type, given)) <= {int} and (not given or (min(given) >= _LEAST and max(given) <= _MOST))
    return given if plain else tuple(map(_integer, given))


def _biases(value: Any) -> dict[int, float]:
    # JSON has texts as keys only
    return {_integer(int(key) if isinstance(key, str) else key): _number(bias) for key, bias in dict(value).items()}


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise TypeError
    return value


INTEGER = Kind("an integer", _integer)
NUMBER = Kind("a number", _number)
SWITCH = instance_of(bool, "true or false")
TEXTS = Kind("a list of strings", _texts)
IDS = Kind("a list of token ids", _ids)
ID_LISTS = Kind("a list of lists of token ids", lambda value: tuple(map(_ids, value)))
BIASES = Kind("a mapping of token ids to numbers", _biases)
FIELDS = Kind("an object", _fields)
