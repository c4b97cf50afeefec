"""From the token ids of one sequence to text that may be sent, piece by piece.

Three promises. Joined deltas equal the decoding of all ids, whatever the cuts. A character goes out as soon as its last
byte is there and never before; bytes that never become a character are one U+FFFD per invalid stretch, also at the end
of the text (a `max_tokens` in the middle of an emoji gives one), streamed or not. A stop string never leaks: text that
may still become one waits, and the text ends before the stop string that is complete first (of two that become
complete with the same character, before the longer one). No clocks, no I/O.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from quire.text.pieces import Pieces


class Detokenizer:
    """Incremental decoding of one sequence.

    continuing: the text goes on from a prompt, so that a SentencePiece vocabulary keeps its first space.
    """

    def __init__(self, pieces: Pieces, *, continuing: bool = True, skip_special: bool = True) -> None:
        self._pieces = pieces
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._strip = pieces.strips_first_space and not continuing

    def push(self, token_ids: Iterable[int]) -> str:
        """Text that these ids complete; the bytes of an unfinished character wait."""
        data = b"".join(self._pieces.bytes_of(i, skip_special=self._skip_special) for i in token_ids)
        return self._emit(self._utf8.decode(data))

    def flush(self) -> str:
        """End of the text: U+FFFD where bytes of an unfinished character are left, else nothing."""
        text = self._emit(self._utf8.decode(b"", final=True))
        self._utf8.reset()
        return text

    def _emit(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class StopMatcher:
    """Looks for several strings in a text that arrives in pieces (one Knuth-Morris-Pratt automaton each).

    The outcome does not depend on where the pieces are cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(self._stops)  # characters of each stop string that the text now ends with
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What may be sent now. After a match `found` is set and everything later is swallowed."""
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            if complete := self._advance(buffer[position]):
                self.found = max(complete, key=len)
                self._held = ""
                return buffer[: position + 1 - len(self.found)]
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

    num_tokens counts the ids that were consumed: all up to and including the one that completed a stop string.
    """

    def __init__(
        self, pieces: Pieces, *, stop: Sequence[str] = (), continuing: bool = True, skip_special: bool = True
    ) -> None:
        self._detokenizer = Detokenizer(pieces, continuing=continuing, skip_special=skip_special)
        self._stops = StopMatcher(stop)
        self.num_tokens = 0

    @property
    def stop_found(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stops.found

    def push(self, token_ids: Sequence[int], *, final: bool = False, stop_token_id: int | None = None) -> str:
        """Safe text that these ids add. final: no more will come. stop_token_id: the last id is that one and no text."""
        text = ""
        for index, token_id in enumerate(token_ids):
            if self._stops.found is not None:
                return text
            self.num_tokens += 1
            if stop_token_id is not None and index == len(token_ids) - 1:
                break
            text += self._stops.push(self._detokenizer.push((token_id,)))
        if final:
            text += self._stops.push(self._detokenizer.flush()) + self._stops.flush()
        return text
