"""Narrow a distribution: min-p, typical-p, top-k and top-p, in that order, for rows of logits at once.

Rows that ask for none are not copied. Logits here have a maximum of 0, so that `exp` gives probabilities relative to the
likeliest token's. What a row keeps does not depend on the rows beside it, nor on the number of threads: rows are summed up by
`cumsum`, one number after the other (`sum` cuts a long row among the threads where it is the only one, but not where there are several).
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from quire.request import SamplingParams

NUM_CANDIDATES = 1024
"""top-k and top-p look at this many likeliest tokens first; only rows that need more are sorted in full."""
SORTED_ROWS = 8
"""Rows that are sorted in full at a time: a sort takes several times the memory of its row, and longer than what surrounds it."""


def restrict(logits: Tensor, params: Rows[SamplingParams]) -> None:
    """Set logits [R, V] outside what a row's parameters keep to -inf, in place."""
    _min_p(logits, [one.min_p for one in params])
    _typical_p(logits, [one.typical_p for one in params])
    _top(logits, params)


def _min_p(logits: Tensor, min_p: Rows[float]) -> None:
    """Tokens whose probability is below min_p times the likeliest one's go."""
    narrow = [row for row, least in enumerate(min_p) if least > 0.0]
    if narrow:
        index = torch.tensor(narrow, device=logits.device)
        least = torch.tensor([min_p[row] for row in narrow], device=logits.device).log_()
        rows = logits.index_select(0, index)
        logits[index] = rows.masked_fill_(rows < least.unsqueeze(1), float("-inf"))


def _typical_p(logits: Tensor, typical_p: Rows[float]) -> None:
    """Locally typical sampling (Meister et al., TACL 2023): of the tokens sorted by how far their information is from the
    entropy, the first ones whose probabilities reach typical_p stay, at least one."""
    sorted_rows = [row for row, mass in enumerate(typical_p) if mass < 1.0]
    for first in range(0, len(sorted_rows), SORTED_ROWS):
        narrow = sorted_rows[first : first + SORTED_ROWS]
        index = torch.tensor(narrow, device=logits.device)
        mass = torch.tensor([typical_p[row] for row in narrow], device=logits.device).unsqueeze(1)
        rows = logits.index_select(0, index)
        information = rows.log_softmax(dim=-1).neg_()
        weight = information.neg().exp_()
        order = (information - _entropy(information, weight)).abs_().argsort(dim=-1, stable=True)
        sorted_weight = weight.gather(1, order)
        drop = sorted_weight.cumsum(dim=-1).sub_(sorted_weight) >= mass
        logits[index] = rows.masked_fill_(torch.empty_like(drop).scatter_(1, order, drop), float("-inf"))


def _entropy(information: Tensor, weight: Tensor) -> Tensor:
    """Of rows [R, V], as [R, 1]."""
    return (information * weight).nan_to_num_(nan=0.0).cumsum_(dim=-1)[:, -1:]


def _top(logits: Tensor, params: Rows[SamplingParams]) -> None:
    """top-k and top-p. Ties with the last token kept are kept too."""
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
        for few in torch.split((~complete).nonzero().flatten(), SORTED_ROWS):
            floor[few] = _floor(rows[few], k[few], p[few], vocab)[0]
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
    reached = weight.cumsum(dim=-1)
    total, limited = reached[:, -1], k <= num_candidates
    if num_candidates < vocab:
        total = torch.where(limited, total, logits.exp().cumsum_(dim=-1)[:, -1])
    kept = within & ((reached - weight < (p * total).unsqueeze(1)) | (rank == 0))
    num_kept = kept.sum(dim=-1)
    floor = top.gather(1, (num_kept - 1).unsqueeze(1)).squeeze(1)
    return floor, limited | ((k >= vocab) & (num_kept < num_candidates))
