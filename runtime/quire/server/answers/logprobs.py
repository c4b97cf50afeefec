"""Log probabilities in the shapes of the OpenAI API. Minus infinity, which JSON lacks, is -9999.

Both cover the tokens of the answer's text; a token that ended it and is no part of the text has no entry, but behind an echo.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from quire.outputs.choice import Piece
from quire.request import TokenLogprobs
from quire.text.pieces import Pieces

LEAST = -9999.0

JSON = dict[str, Any]


def of_text(piece: Piece) -> Sequence[TokenLogprobs]:
    """The entries of a piece whose tokens are part of the text."""
    return piece.logprobs[:-1] if piece.stop_token else piece.logprobs


def chat(entries: Sequence[TokenLogprobs], pieces: Pieces) -> JSON:
    """`choices[].logprobs` of a chat answer or chunk."""
    content = [
        {
            **_token(entry.token_ids[0], entry.logprobs[0], pieces),
            "top_logprobs": [
                _token(token, logprob, pieces)
                for token, logprob in zip(entry.token_ids[1:], entry.logprobs[1:], strict=True)
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def completion(entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
    """`choices[].logprobs` of a completion or its chunk. offset: characters of the tokens before these."""
    tokens = [written(entry.token_ids[0], pieces) for entry in entries]
    offsets: list[int] = []
    for entry in entries:
        offsets.append(offset)
        offset += len(pieces.text_of(entry.token_ids[0]))
    return {
        "text_offset": offsets,
        "token_logprobs": [_finite(entry.logprobs[0]) for entry in entries],
        "tokens": tokens,
        "top_logprobs": [
            {written(token, pieces): _finite(p) for token, p in zip(entry.token_ids, entry.logprobs, strict=True)}
            for entry in entries
        ],
    }


def likeliest(entries: Sequence[TokenLogprobs], count: int) -> list[TokenLogprobs]:
    """The same with `count` likeliest tokens of each at most."""
    return [TokenLogprobs(entry.token_ids[: count + 1], entry.logprobs[: count + 1], entry.rank) for entry in entries]


def echoed(token_ids: Sequence[int], entries: Sequence[TokenLogprobs], pieces: Pieces, length: int) -> JSON:
    """`choices[].logprobs` of a prompt that the answer repeats: nothing comes before its first token.

    length: characters of the text; a begin token that the tokenizer put before it has none of them.
    """
    decoder, ends = codecs.getincrementaldecoder("utf-8")("replace"), [0]
    for token in token_ids:
        ends.append(ends[-1] + len(decoder.decode(pieces.bytes_of(token, skip_special=False))))
    before = max(ends[-1] - length, 0)
    told = completion(entries, pieces, 0)
    return {
        "text_offset": [max(end - before, 0) for end in ends[:-1]],
        "token_logprobs": [None, *told["token_logprobs"]],
        "tokens": [written(token_ids[0], pieces), *told["tokens"]],
        "top_logprobs": [None, *told["top_logprobs"]],
    }


def prompt(entries: Sequence[TokenLogprobs], pieces: Pieces) -> list[JSON | None]:
    """`prompt_logprobs` as vLLM writes them: for each token of the prompt a mapping from token id; none for the first."""
    found: list[JSON | None] = [None]
    for entry in entries:
        ranks = [entry.rank, *range(1, len(entry.token_ids))]
        found.append(
            {
                str(token): {"logprob": _finite(p), "rank": rank, "decoded_token": pieces.text_of(token)}
                for token, p, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True)
            }
        )
    return found


def written(token_id: int, pieces: Pieces) -> str:
    """A token as the key of a mapping: its text, or its bytes where they are no text (as OpenAI writes them)."""
    data = pieces.bytes_of(token_id, skip_special=False)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _token(token_id: int, logprob: float, pieces: Pieces) -> JSON:
    data = pieces.bytes_of(token_id, skip_special=False)
    return {"token": data.decode("utf-8", errors="replace"), "logprob": _finite(logprob), "bytes": list(data)}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
