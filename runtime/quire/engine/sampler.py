"""Draw one token per row of logits, the whole batch at once.

Randomness is counter-based: the noise of a token depends on the request's seed, the position of the draw and the token's id
alone. So a seed gives the same tokens alone, in any batch, after preemption and after a restart. A draw is the minimum of
an exponential race (E_i / p_i), which unlike walking a cumulative sum hardly moves when a logit's last bit does.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from quire.engine.scheduler import NO_TOKEN
from quire.engine.seeds import mix
from quire.request import SamplingParams

NUM_CANDIDATES = 1024
"""top-k and top-p look at this many likeliest tokens first; only rows that need more are sorted in full."""


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row needs. `position` counts the request's generated tokens."""

    params: SamplingParams
    seed: int
    position: int


@torch.inference_mode()
def sample(logits: Tensor, draws: Rows[Draw]) -> list[int]:
    """Token ids for logits [R, V], one per draw; NO_TOKEN where the row's largest logit is not a finite number."""
    best, tokens = logits.max(dim=-1)
    chosen = torch.where(torch.isfinite(best), tokens, NO_TOKEN)
    rows = [row for row, draw in enumerate(draws) if not draw.params.greedy]
    if rows:
        index = torch.tensor(rows, device=logits.device)
        drawn = _draw(logits.index_select(0, index).float(), [draws[row] for row in rows])
        chosen[index] = torch.where(chosen[index] == NO_TOKEN, NO_TOKEN, drawn)
    result: list[int] = chosen.tolist()
    return result


def _draw(logits: Tensor, draws: Rows[Draw]) -> Tensor:
    temperature = torch.tensor([draw.params.temperature for draw in draws], device=logits.device)
    logits.div_(temperature.unsqueeze(1))
    logits.sub_(logits.max(dim=-1, keepdim=True).values)
    _restrict(logits, draws)
    return logits.sub_(_exponential(draws, logits.shape[1], logits.device).log_()).argmax(dim=-1)


def _restrict(logits: Tensor, draws: Rows[Draw]) -> None:
    """Set logits outside top-k and top-p to -inf, in place. Ties with the last token kept are kept too."""
    vocab = logits.shape[1]
    top_k = [draw.params.top_k if 0 < draw.params.top_k < vocab else vocab for draw in draws]
    top_p = [draw.params.top_p for draw in draws]
    narrow = [row for row in range(len(draws)) if top_k[row] < vocab or top_p[row] < 1.0]
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


def _exponential(draws: Rows[Draw], vocab: int, device: torch.device) -> Tensor:
    """[R, V] of Exp(1), a hash of (seed, position, token id): two rounds of a 32-bit finaliser with 64 bits of key."""
    keys = [mix(mix(draw.seed & (2**64 - 1)) ^ draw.position) for draw in draws]
    low = torch.tensor([_signed(key & 0xFFFFFFFF) for key in keys], dtype=torch.int32, device=device)
    high = torch.tensor([_signed(key >> 32) for key in keys], dtype=torch.int32, device=device)
    bits = torch.arange(vocab, dtype=torch.int32, device=device) ^ low.unsqueeze(1)
    bits = _finalise(_finalise(bits).add_(high.unsqueeze(1)))
    uniform = bits.bitwise_and_(0x7FFFFFFF).float().add_(0.5).mul_(2.0**-31)
    return uniform.neg_().log1p_().neg_()


def _finalise(bits: Tensor) -> Tensor:
    """lowbias32 of Chris Wellons' hash-prospector (public domain), in place on int32."""
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    bits *= 0x7FEB352D
    bits ^= (bits >> 15).bitwise_and_(0x1FFFF)
    bits *= _signed(0x846CA68B)
    bits ^= (bits >> 16).bitwise_and_(0xFFFF)
    return bits


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value
