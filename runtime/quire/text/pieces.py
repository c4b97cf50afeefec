"""What each token id stands for, in bytes.

Text is the UTF-8 decoding of the concatenated bytes of its tokens; that one definition makes decoding incremental and
exact at once. The bytes follow from the vocabulary's decoder: byte-level (GPT-2, Llama 3, Qwen) writes bytes as printable
characters, SentencePiece style (Llama 2, Mistral, Gemma) writes spaces as ▁ and rare bytes as <0xNN>, WordPiece (BERT) writes ## before
what continues a word.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Collection
from functools import cache
from typing import Any

import tokenizers
import tokenizers.models

from quire.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, as character -> byte.

    Printable Latin-1 characters stand for themselves; the 68 others take the code points from 256 up, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(rest)}


class Pieces:
    """Bytes of every token id; `longest` is the most of a text that one covers (of sensible text, where blanks and unknown words leave
    nothing: WordPiece). Ids the tokenizer does not know have none."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, special_ids: Collection[int]) -> None:
        """special_ids: tokens that are no text (`skip_special` leaves them out)."""
        self.special_ids = frozenset(special_ids)
        self.strips_first_space, convert = _converter(tokenizer)
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self._bytes: list[bytes] = [b""] * (max(vocab.values(), default=-1) + 1)
        for token, token_id in vocab.items():
            self._bytes[token_id] = convert(token)
        self.longest = max(map(len, self._bytes), default=1) or 1
        if isinstance(
            tokenizer.model, tokenizers.models.WordPiece
        ):  # a longer word is not looked up; behind each may be a blank
            self.longest = max(self.longest, tokenizer.model.max_input_chars_per_word) + 1

    def __len__(self) -> int:
        return len(self._bytes)

    def showing(self, visible: Collection[int]) -> Pieces:
        """The same, but these special tokens are text."""
        other = copy.copy(self)
        other.special_ids = self.special_ids - frozenset(visible)
        return other

    def bytes_of(self, token_id: int, *, skip_special: bool = True) -> bytes:
        if not 0 <= token_id < len(self._bytes) or (skip_special and token_id in self.special_ids):
            return b""
        return self._bytes[token_id]

    def text_of(self, token_id: int) -> str:
        """One token for people to look at; U+FFFD for bytes that are no whole character."""
        return self.bytes_of(token_id, skip_special=False).decode("utf-8", errors="replace")


def _converter(tokenizer: tokenizers.Tokenizer) -> tuple[bool, Any]:
    """Whether the text loses one leading space, and the function from token to bytes."""
    steps = _steps(None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__()))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return False, _from_byte_level
    if kinds & {"Metaspace", "ByteFallback"} or _replaces_metaspace(steps):
        strips = any(
            (step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0) >= 1)
            or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
            for step in steps
        )
        return strips, _from_metaspace
    if "WordPiece" in kinds:
        prefix = next(str(step.get("prefix", "##")) for step in steps if step["type"] == "WordPiece")
        return True, lambda token: _from_word_piece(token, prefix)
    if not kinds:  # a plain word vocabulary: words are joined by spaces
        return True, lambda token: (" " + token).encode()
    raise ModelError(
        f"the tokenizer decodes with {', '.join(sorted(kinds))}, which this engine does not know; "
        "byte-level, SentencePiece style and WordPiece tokenizers are supported"
    )


def _from_word_piece(token: str, prefix: str) -> bytes:
    return token.removeprefix(prefix).encode() if token.startswith(prefix) else f" {token}".encode()


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]


def _replaces_metaspace(steps: list[dict[str, Any]]) -> bool:
    return any(step["type"] == "Replace" and step.get("content") == " " for step in steps)


def _from_byte_level(token: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[char] for char in token])
    except KeyError:  # an added token that is spelled in plain text
        return token.encode()


def _from_metaspace(token: str) -> bytes:
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    return token.replace("▁", " ").encode()
