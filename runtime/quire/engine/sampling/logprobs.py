"""Log probabilities of tokens by the model's own logits: before any processor and the temperature, in float32.

A row's numbers do not depend on the other rows, nor on how many likeliest tokens these ask for.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from quire.request import TokenLogprobs

USUAL = 20
"""Likeliest tokens that are looked for where no more are wanted: always the same number, so that ties at the end fall alike for
every caller, whatever the others of its batch want."""
ROWS = 32
"""Rows whose logits, or float32 copies of them, exist at a time: a bound on memory that costs no time."""


@torch.inference_mode()
def token_logprobs(logits: Tensor, tokens: Rows[int], tops: Rows[int]) -> list[TokenLogprobs]:
    """For logits [R, V]: those of tokens[r] and of the tops[r] likeliest tokens of each row."""
    found: list[TokenLogprobs] = []
    for start in range(0, len(tokens), ROWS):
        end = start + ROWS
        found += _rows(logits[start:end], tokens[start:end], tops[start:end])
    return found


def _rows(logits: Tensor, tokens: Rows[int], tops: Rows[int]) -> list[TokenLogprobs]:
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    ranks = (logprobs > own).sum(dim=-1).add_(1).tolist()
    own_values = own.flatten().tolist()
    found: dict[int, TokenLogprobs] = {}
    for width in {max(top, USUAL) for top in tops}:
        rows = [r for r, top in enumerate(tops) if max(top, USUAL) == width]
        some = logprobs if len(rows) == len(tokens) else logprobs[rows]
        likeliest = some.topk(min(width, logits.shape[1]), dim=-1)
        for r, ids, values in zip(rows, likeliest.indices.tolist(), likeliest.values.tolist(), strict=True):
            top = tops[r]
            found[r] = TokenLogprobs([tokens[r], *ids[:top]], [own_values[r], *values[:top]], ranks[r])
    return [found[r] for r in range(len(tokens))]
