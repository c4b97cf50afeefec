"""Rows for the sampler: real sequences in the state that a test wants."""

from __future__ import annotations

from collections.abc import Iterable

from quire.engine.sequence import Sequence
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, SamplingParams

_KV = KVCacheManager(1, 1, enable_prefix_caching=False)


def make_row(
    params: SamplingParams,
    seed: int = 0,
    position: int = 0,
    *,
    prompt: Iterable[int] = (0,),
    generated: Iterable[int] | None = None,
    stop_ids: Iterable[int] = (),
) -> Sequence:
    """A sequence about to draw its token number `position`; `generated` gives the tokens before it."""
    request = AddRequest(request_id="row", prompt_token_ids=list(prompt), params=params, arrival_s=0.0)
    row = Sequence(
        request,
        request_id="row",
        table=_KV.table(),
        stop_ids=frozenset(stop_ids),
        seed=seed,
        max_tokens=1 << 20,
        order=0,
    )
    row.tokens += [0] * position if generated is None else list(generated)
    return row
