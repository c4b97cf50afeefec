"""EBNF with `::=` (GBNF, https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md) as Lark. In workers only.

llguidance's own converter does it. It hands what is in texts and classes on as it is written, but strings and expressions of Lark
read other escapes (`\\x2d`, `\\u00e9`), no control characters, and operators inside of classes (`&&`, `--`). So texts, classes and
`.`, which is a line break too, are written out before in forms that converter and Lark read alike, and control characters after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from llguidance.gbnf_to_lark import GbnfToLarkError, Position, gbnf_to_lark

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""\#[^\r\n]*           # a comment
      | "(?:\\.|[^"\\])*"    # a text
      | \[(?:\\.|[^]\\])*]   # a class
      | \.                   # any character""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)"
_IN_TEXT = re.compile(rf"{_ESCAPE}|\n", re.DOTALL)
_IN_CLASS = re.compile(rf"({_ESCAPE}|.)(?:-({_ESCAPE}|.))?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
"""What the converter adds is spaces and line feeds; others of these are in texts, or in comments."""
_NAMED = {"n": "\n", "r": "\r", "t": "\t"} | dict(zip('"\\[]-', '"\\[]-', strict=True))
_ESCAPED = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}
_ANY = "[\\x00-\U0010ffff]"


class _NoCharacter(ValueError):
    """What stands behind the last piece is an escape of none."""


def is_ebnf(text: str) -> bool:
    """Whether a line begins a rule as EBNF does. No line of Lark begins so."""
    return _RULE.search(text) is not None


def to_lark(text: str) -> str:
    """The same grammar; its first rule is called root. Raises ValueError with what is wrong, and where."""
    pieces: list[tuple[str, str]] = []
    try:
        pieces.extend(_pieces(text))
    except _NoCharacter as exc:
        place = sum(len(piece) for piece, _ in pieces)
        raise ValueError(f"{exc} at {Position(text, place)}") from None
    try:
        lark = gbnf_to_lark("".join(written for _, written in pieces))
    except GbnfToLarkError as exc:
        message = str(exc).removesuffix(f" at {exc.pos}")
        # an escape that is none is named behind its backslash
        place = _place(pieces, exc.pos.pos) - message.startswith("Invalid")
        raise ValueError(f"{message} at {Position(text, place)}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except IndexError:
        raise ValueError("it ends in the middle of an escape") from None
    except Exception as exc:  # noqa: BLE001 - the converter's errors have no class of their own
        raise ValueError(str(exc)) from None
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", lark)


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """All of it, piece by piece: as it was, and written out."""
    end = 0
    for token in _TOKEN.finditer(text):
        yield text[end : token.start()], text[end : token.start()]
        yield from _written_out(token[0])
        end = token.end()
    yield text[end:], text[end:]


def _place(pieces: list[tuple[str, str]], written_place: int) -> int:
    """Where in the text is what the converter names by its place in what is written out."""
    place = 0
    for piece, written in pieces:
        if written_place < len(written):
            return place + written_place  # within a piece that was not changed: what is changed is right
        place += len(piece)
        written_place -= len(written)
    return place


def _written_out(token: str) -> Iterator[tuple[str, str]]:
    if token[0] == "#":
        yield token, token
    elif token == ".":
        yield token, _ANY
    else:
        pattern, change = (_IN_TEXT, _of_text) if token[0] == '"' else (_IN_CLASS, _of_class)
        end = 2 if token.startswith("[^") else 1
        yield token[:end], token[:end]
        for found in pattern.finditer(token, end, len(token) - 1):
            yield token[end : found.start()], token[end : found.start()]
            yield from change(found)
            end = found.end()
        yield token[end:], token[end:]


def _of_text(code: re.Match[str]) -> Iterator[tuple[str, str]]:
    character = _character(code[0])
    yield code[0], code[0] if character is None else _ESCAPED.get(character, character)


def _of_class(span: re.Match[str]) -> Iterator[tuple[str, str]]:
    """A character, or a first and a last one."""
    first, last = span.groups()
    yield first, _one_of_class(first)
    if last is not None:
        yield "-", "-"
        yield last, _one_of_class(last)


def _one_of_class(code: str) -> str:
    character = _character(code)
    if character is None:
        return code
    return character if not character.isascii() or character.isalnum() else f"\\x{ord(character):02x}"


def _character(code: str) -> str | None:
    """What an escape, or a character as it is, stands for; None where there is no such escape, which the converter says. Raises _NoCharacter."""
    if code[0] != "\\":
        return code
    if len(code) == 2:
        return _NAMED.get(code[1])
    number = int(code.lstrip("\\xuU"), 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise _NoCharacter(f"{code} is no character")
    return chr(number)
