"""From the token ids of one sequence to text that may be sent, piece by piece.

Three promises. Joined deltas equal the decoding of all ids, whatever the cuts. A character goes out as soon as its last
byte is there and never before; bytes that never become a character are one U+FFFD per invalid stretch, also at the end
of the text (a `max_tokens` in the middle of an emoji gives one), streamed or not. A stop string never leaks: text that
may still become one waits, and the text ends before the stop string that is complete first (of two that become
complete with the same character, before the longer one). No clocks, no I/O.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping, Sequence

from quire.text.pieces import Pieces


class Detokenizer:
    """Incremental decoding of one sequence.

    continuing: the text goes on from a prompt, so that a SentencePiece vocabulary keeps its first space.
    skip_special: special tokens are no text. special_spaces: a vocabulary that sets words apart by spaces writes one
    between two special tokens too.
    """

    def __init__(
        self, pieces: Pieces, *, continuing: bool = True, skip_special: bool = True, special_spaces: bool = True
    ) -> None:
        self._pieces = pieces
        self._skip_special = skip_special
        self._special_spaces = special_spaces
        self._after_special = False
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = pieces.strips_first_space and not continuing

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that these ids complete; the bytes of an unfinished character wait."""
        return self._emit(self._utf8.decode(b"".join(map(self._bytes, token_ids))))

    def flush(self) -> str:
        """End of the text: U+FFFD where bytes of an unfinished character are left, else nothing."""
        text = self._emit(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return text

    def _bytes(self, token_id: int) -> bytes:
        data = self._pieces.bytes_of(token_id, skip_special=self._skip_special)
        if not self._special_spaces:
            special = token_id in self._pieces.special_ids
            if special and self._after_special:
                data = data.removeprefix(b" ")
            self._after_special = special
        return data

    def _emit(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class StopMatcher:
    """Looks for several strings in a text that arrives in pieces (one Knuth-Morris-Pratt automaton each).

    The outcome does not depend on where the pieces are cut. keep_found: the text ends after the stop string. Text that is pushed
    with `early` may begin a stop string but completes none.
    """

    def __init__(self, stops: Sequence[str], *, keep_found: bool = False) -> None:
        self._keep_found = keep_found
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text now ends with
        self._held = ""
        self.found: str | None = None

    def push(self, text: str, *, early: bool = False) -> str:
        """What may be sent now. After a match `found` is set and everything later is swallowed."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            if (complete := self._advance(buffer[position])) and not early:
                self.found = max(complete, key=len)
                self._held = ""
                return buffer[: position + 1 - (0 if self._keep_found else len(self.found))]
        keep = max(self._matched)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """End of the text: what was held back is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> list[str]:
        complete: list[str] = []
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            if stop[matched] == char:
                matched += 1
            if matched == len(stop):
                complete.append(stop)
                matched = borders[matched - 1]
            self._matched[index] = matched
        return complete


def _borders(pattern: str) -> list[int]:
    """Length of the longest proper prefix that is also a suffix, for every prefix of the pattern."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        if pattern[index] == pattern[length]:
            length += 1
        borders[index] = length
    return borders


class TextStream:
    """Detokenizer and stop strings of one sequence together.

    include_stop: what ends the text is part of it. stop_spellings: special tokens that are stop strings, which are text where they
    end it and include_stop is set. min_tokens: a stop string that is complete with the text of so many tokens is none.
    silent: count tokens, make no text. num_tokens counts the ids that were consumed: all up to and including the one that
    completed a stop string.
    """

    def __init__(
        self,
        pieces: Pieces,
        *,
        stop: Sequence[str] = (),
        stop_spellings: Mapping[int, str] | None = None,
        continuing: bool = True,
        skip_special: bool = True,
        special_spaces: bool = True,
        include_stop: bool = False,
        min_tokens: int = 0,
        silent: bool = False,
    ) -> None:
        self._detokenizer = Detokenizer(
            pieces, continuing=continuing, skip_special=skip_special, special_spaces=special_spaces
        )
        self._stops = StopMatcher(stop, keep_found=include_stop)
        self.pieces = pieces
        self._include_stop = include_stop
        self._spellings = stop_spellings or {}
        self._min_tokens = min_tokens
        self._silent = silent
        self.num_tokens = 0

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    def push(self, token_ids: Sequence[int], *, final: bool = False, stop_token_id: int | None = None) -> str:
        """Safe text that these ids add. final: no more will come. stop_token_id: the last id is that one and no text."""
        if self._silent:
            self.num_tokens += len(token_ids)
            return ""
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._stops.found is not None:
                return text
            self.num_tokens += 1
            ends = stop_token_id is not None and index == len(token_ids) - 1
            if ends and not self._include_stop:
                break
            new = self._detokenizer.push((token_id,))
            if ends and not new:  # a special token, and no text
                new = self._detokenizer.flush() + self._spellings.get(token_id, "")
            text += self._match(new)
        if final:
            text += self._match(self._detokenizer.flush()) + self._stops.flush()
        return text

    def _match(self, new: str) -> str:
        return self._stops.push(new, early=self.num_tokens <= self._min_tokens)
