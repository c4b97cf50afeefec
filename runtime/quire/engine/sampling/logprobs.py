"""Log probabilities of tokens by the model's own logits: before any processor and the temperature, in float32.

A row's numbers do not depend on the other rows, nor on how many likeliest tokens these ask for.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from quire.request import TokenLogprobs
from quire.sampling_params import MAX_LOGPROBS

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
    # always the same number, so that ties at the end fall alike for every caller
    likeliest = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]), dim=-1)
    ids, values, own_values = likeliest.indices.tolist(), likeliest.values.tolist(), own.flatten().tolist()
    return [
        TokenLogprobs([token, *ids[r][:top]], [own_values[r], *values[r][:top]], ranks[r])
        for r, (token, top) in enumerate(zip(tokens, tops, strict=True))
    ]
