"""Log probabilities as users of the Python API read them."""

from __future__ import annotations

from quire.outputs.results import Logprob
from quire.request import TokenLogprobs
from quire.text.pieces import Pieces


def by_token(entry: TokenLogprobs, pieces: Pieces) -> dict[int, Logprob]:
    """Token id to log probability: the token itself, then the likeliest ones."""
    ranks = [entry.rank, *range(1, len(entry.token_ids))]
    return {
        token: Logprob(logprob, rank, pieces.text_of(token))
        for token, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True)
    }


def of_prompt(entries: list[TokenLogprobs], pieces: Pieces) -> list[dict[int, Logprob] | None]:
    """One for each token of the prompt; nothing comes before the first."""
    return [None, *(by_token(entry, pieces) for entry in entries)]
