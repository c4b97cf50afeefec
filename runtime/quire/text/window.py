"""The part of a text that has its first or its last tokens, so that no more is encoded than is used. Pure.

Tokenizers look little further than a word, so tokens far enough from a cut are those of the whole text. A cut is made where a word
follows a space or a line break and there is such a place within `SLACK_CHARS`, for no supported tokenizer joins what meets there; the
tokens next to it are spare. Where there is none (one word of thousands of letters, a line of dashes) the cut falls anywhere: the part then
still has the tokens that are asked for, and they spell the same text, but a run that repeats itself may be divided at other places than in
the whole (of xxxxx the last token is x, of its end xxxx it is xx), and only encoding the whole would tell.
"""

from __future__ import annotations

import re
from collections.abc import Callable

SPARE_TOKENS = 64
SLACK_CHARS = 4096
_USUAL_CHARS = 4  # of a token
_SEAM = re.compile(r"(?<=\S) (?=[^\W\d_])|(?<=\n)(?=[^\W\d_])")

Count = Callable[[str], int]


def beginning(text: str, keep: int, *, longest: int, count: Count) -> str:
    """Enough for the first `keep` tokens. longest: characters that a token covers at most. count: tokens of a text."""
    return _enough(lambda size: text[: _last_seam(text, size)], len(text), keep, longest, count)


def end(text: str, keep: int, *, longest: int, count: Count) -> str:
    """Enough for the last ones; see `beginning`."""
    return _enough(lambda size: text[_first_seam(text, len(text) - size) :], len(text), keep, longest, count)


def _enough(part: Callable[[int], str], num_chars: int, keep: int, longest: int, count: Count) -> str:
    """Parts that grow until one has the tokens; the bound is what so many can cover."""
    most = min(num_chars, (keep + SPARE_TOKENS) * longest + SLACK_CHARS)
    size = min(most, (keep + SPARE_TOKENS) * _USUAL_CHARS + SLACK_CHARS)
    while size < most:
        found = part(size)
        if count(found) >= keep + SPARE_TOKENS:
            return found
        size = min(most, 2 * size)
    return part(most)


def _last_seam(text: str, at: int) -> int:
    """The last one before a place, if one is near; else the place."""
    if at == len(text):
        return at
    return max((found.start() for found in _SEAM.finditer(text, max(0, at - SLACK_CHARS), at)), default=at)


def _first_seam(text: str, at: int) -> int:
    if at == 0:
        return at
    found = _SEAM.search(text, at, at + SLACK_CHARS)
    return found.start() if found else at
