"""A grammar, in the Lark of llguidance, whose texts are calls in a model's own format with arguments that their schemas accept."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.structured import BLANKS_OF_JSON

NAME = "{name}"


@dataclass(frozen=True)
class Spelling:
    """How calls are written: `open`, for each call `before` (with NAME in it), its arguments, `after`; `between` two calls; `close`.

    one: the format knows one call in an answer. specials: marks that are special tokens in some vocabularies.
    """

    before: str
    after: str = ""
    between: str = "\n"
    open: str = ""
    close: str = ""
    one: bool = False
    specials: tuple[str, ...] = ()


def answer_grammar(
    spelling: Spelling | None,
    functions: Mapping[str, Any],
    *,
    parallel: bool,
    special_id: Callable[[str], int | None],
    thinks: bool = False,
    instead: Any = None,
) -> str:
    """Lark: at least one call, or `instead`.

    functions: a JSON schema of an object for each name; none with spelling None. special_id: the id of a mark that is a special token.
    thinks: the answer begins inside of `<think>`. instead: a JSON schema of answers that are no call, where there may be such.
    """
    answers = [] if instead is None else [_schema(instead)]
    rules: list[str] = []
    if spelling is not None:
        calls, rules = _calls(spelling, functions, parallel, special_id)
        answers.append(calls)
    start = " | ".join(f"({one})" for one in answers)
    if thinks:
        start = f"thought blanks? ({start})"
        rules += [r"thought[lazy]: /[\s\S]*<\/think>/", r"blanks: /\s{1,4}/"]
    return "\n".join([f"start: {start}", *rules]) + "\n"


def _calls(
    spelling: Spelling, functions: Mapping[str, Any], parallel: bool, special_id: Callable[[str], int | None]
) -> tuple[str, list[str]]:
    """The body of a rule for all calls of an answer, and the rules that it uses."""

    def text(words: str) -> str:
        return _text(words, spelling.specials, special_id)

    more = f"({text(spelling.between)} call)*" if parallel and not spelling.one else ""
    body = " ".join(filter(None, [text(spelling.open), "call", more, text(spelling.close)]))
    rules = ["call: " + " | ".join(f"call_{number}" for number in range(len(functions)))]
    for number, (name, schema) in enumerate(functions.items()):
        before, after = (text(part.replace(NAME, name)) for part in (spelling.before, spelling.after))
        rules.append(f"call_{number}: " + " ".join(filter(None, [before, _schema(schema), after])))
    return body, rules


def _schema(schema: Any) -> str:
    options = {"whitespace_flexible": True, "whitespace_pattern": BLANKS_OF_JSON}
    whole = {**({} if schema is True else schema), "x-guidance": options}
    return f"%json {json.dumps(whole, ensure_ascii=False, separators=(',', ':'))}"


def _text(words: str, specials: Sequence[str], special_id: Callable[[str], int | None]) -> str:
    """A text as terminals: strings as JSON writes them, and ids of special tokens."""
    if not words:
        return ""
    marks = {mark: token for mark in specials if (token := special_id(mark)) is not None}
    pieces = re.split("(" + "|".join(map(re.escape, marks)) + ")", words) if marks else [words]
    return " ".join(
        f"<[{marks[one]}]>" if one in marks else json.dumps(one, ensure_ascii=False) for one in pieces if one
    )
