"""EBNF with `::=` (GBNF, https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md) as Lark. In workers only.

llguidance's own converter does it. It hands escapes of characters (`\\x2d`, `\\u00e9`) on in forms that neither strings nor
expressions of Lark read, so these are written out before.
"""

from __future__ import annotations

import re

from llguidance.gbnf_to_lark import gbnf_to_lark

_RULE = re.compile(r"^[ \t]*[\w-]+[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""\#[^\n]*             # a comment
      | "(?:\\.|[^"\\])*"    # a text
      | \[(?:\\.|[^]\\])*]   # characters""",
    re.VERBOSE | re.DOTALL,
)
_CODE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)
_IN_TEXT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def is_ebnf(text: str) -> bool:
    """Whether a line begins a rule as EBNF does. No line of Lark begins so."""
    return _RULE.search(text) is not None


def to_lark(text: str) -> str:
    """The same grammar; its first rule is called root. Raises ValueError with what is wrong, and where."""
    try:
        return gbnf_to_lark(_TOKEN.sub(_written_out, text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except IndexError:
        raise ValueError("it ends in the middle of an escape") from None
    except Exception as exc:  # noqa: BLE001 - the converter's errors have no class of their own
        raise ValueError(str(exc)) from None


def _written_out(token: re.Match[str]) -> str:
    text = token[0]
    if text[0] == "#":
        return text
    if text[0] == '"':
        return _CODE.sub(_text_character, text).replace("\n", "\\n")
    return _CODE.sub(_class_character, text)


def _text_character(code: re.Match[str]) -> str:
    if code[4] is not None:
        return code[4] if code[4] in "[]" else code[0]
    character = _character(code)
    return _IN_TEXT.get(character, character)


def _class_character(code: re.Match[str]) -> str:
    if code[4] is not None:
        return code[0]
    character = _character(code)
    return character if not character.isascii() or character.isalnum() else f"\\x{ord(character):02x}"


def _character(code: re.Match[str]) -> str:
    number = int(code[1] or code[2] or code[3], 16)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:
        raise ValueError(f"{code[0]} is no character")
    return chr(number)
