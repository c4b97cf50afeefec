"""Narrow a distribution to its likelier part: top-k and top-p, for rows of logits at once."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from quire.request import SamplingParams

NUM_CANDIDATES = 1024
"""top-k and top-p look at this many likeliest tokens first; only rows that need more are sorted in full."""


def restrict(logits: Tensor, params: Rows[SamplingParams]) -> None:
    """Set logits outside top-k and top-p to -inf, in place. Ties with the last token kept are kept too."""
    vocab = logits.shape[1]
    top_k = [one.top_k if 0 < one.top_k < vocab else vocab for one in params]
    top_p = [one.top_p for one in params]
    narrow = [row for row in range(len(params)) if top_k[row] < vocab or top_p[row] < 1.0]
    if not narrow:
        return
    index = torch.tensor(narrow, device=logits.device)
    rows = logits.index_select(0, index)
    k = torch.tensor([top_k[row] for row in narrow], device=logits.device)
    p = torch.tensor([top_p[row] for row in narrow], device=logits.device)
    floor, complete = _floor(rows, k, p, min(NUM_CANDIDATES, vocab))
    if not bool(complete.all()):
        floor = torch.where(complete, floor, _floor(rows, k, p, vocab)[0])
    logits[index] = rows.masked_fill_(rows < floor.unsqueeze(1), float("-inf"))


def _floor(logits: Tensor, k: Tensor, p: Tensor, num_candidates: int) -> tuple[Tensor, Tensor]:
    """Per row the least logit that stays, and whether the candidates were enough to know it.

    top-k first; top-p then keeps the fewest likeliest tokens whose probabilities, among those k, reach p.
    """
    vocab = logits.shape[1]
    top = logits.topk(num_candidates, dim=-1).values
    rank = torch.arange(num_candidates, device=logits.device)
    within = rank < k.unsqueeze(1)
    weight = top.exp().masked_fill_(~within, 0.0)
    everything = logits.exp().sum(dim=-1)
    limited = k <= num_candidates
    total = torch.where(limited, weight.sum(dim=-1), everything)
    before = weight.cumsum(dim=-1) - weight
    kept = within & ((before < (p * total).unsqueeze(1)) | (rank == 0))
    num_kept = kept.sum(dim=-1)
    floor = top.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1)
    return floor, limited | ((k >= vocab) & (num_kept < num_candidates))
