"""A prompt on its way to a vector. Pure but for NumPy's sums."""

from __future__ import annotations

import numpy as np

from quire.engine.results import Fault
from quire.engine.sequence import Sequence
from quire.kvcache.manager import BlockTable
from quire.models.pooling import Pooling
from quire.request import PoolRequest

_NOT_FINITE = Fault("the model computed no finite vector for this prompt; the weights or the type overflow")


class PooledSequence(Sequence):
    """Its hidden states are gathered as chunks of it are computed, each position once: what was computed again after a preemption is
    not gathered again.

    gathered: [H] float64, the sum over the positions so far. num_gathered: of positions. token_type_ids: see `PoolRequest`.
    """

    __slots__ = ("gathered", "num_gathered", "pooling", "token_type_ids")

    draws = False

    def __init__(self, request: PoolRequest, *, pooling: Pooling, table: BlockTable, order: int) -> None:
        super().__init__(
            request,
            request_id=request.request_id,
            table=table,
            stop_ids=frozenset(),
            seed=0,
            max_tokens=0,
            order=order,
        )
        self.token_type_ids = request.token_type_ids
        self.pooling = pooling
        self.gathered: np.ndarray | None = None
        self.num_gathered = 0

    @property
    def needs_prompt(self) -> bool:
        return self.pooling.kind != "last"  # which is never found in a cache

    def wanted(self, start: int, end: int) -> range:
        """Positions whose hidden states are to be gathered, of those in start..end that a step computes."""
        match self.pooling.kind:
            case "last":
                return range(self.num_prompt - 1, end)
            case "cls":
                return range(start, 1 - self.num_gathered)
            case "mean":
                return range(max(start, self.num_gathered), end)

    def gather(self, hidden: np.ndarray) -> None:
        """hidden: [N, H] float32 of the positions wanted."""
        if len(hidden):
            total = hidden.sum(axis=0, dtype=np.float64)
            self.gathered = total if self.gathered is None else self.gathered + total
            self.num_gathered += len(hidden)

    def vector(self) -> bytes | Fault:
        """What the whole prompt came to, as `TokenDelta.vector`."""
        assert self.gathered is not None
        return finished(self.gathered / self.num_gathered, normalise=self.pooling.normalise)


def finished(vector: np.ndarray, *, normalise: bool) -> bytes | Fault:
    """A vector [H] as it is sent."""
    if not np.isfinite(vector).all():
        return _NOT_FINITE
    if normalise:
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return vector.astype("<f4").tobytes()
