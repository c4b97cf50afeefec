"""One layer's attention: projections, norms of queries and keys, rotation, the paged cache."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from quire.models import linear
from quire.models.description import DecoderDescription
from quire.models.executor import Batch
from quire.models.linear import Pack
from quire.models.rope import Tables
from quire_kernels import ops


class Attention:
    """Causal grouped-query attention of a layer over its part of the KV pool.

    Keys and values of the whole batch are written before attention reads: sequences of one step may therefore share
    blocks that are filled in that very step.
    """

    def __init__(
        self,
        description: DecoderDescription,
        layer: int,
        weights: dict[str, Tensor],
        tables: Tables | None,
        pack: Pack = linear.pack,
    ) -> None:
        """weights: the layer's, fused (see `description.STACKED`); what is packed is taken out. tables: None for no rotation."""
        d = description
        self._qkv = pack(weights.pop("qkv"), weights.get("qkv_bias"))
        self._o = pack(weights.pop("o"), weights.get("o_bias"))
        self._norm_heads = _norm_of_heads(d, weights)
        self._tables = tables
        self._heads = d.num_heads
        self._kv_heads = d.num_kv_heads
        self._head_size = d.head_size
        self._scale = d.attention_scale
        self._window = d.window_of(layer)
        self._softcap = d.attention_softcap

    def __call__(self, hidden: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        """hidden [T, H] to [T, H]; keys and values are the layer's caches."""
        tokens = hidden.shape[0]
        qkv = self._qkv(hidden).view(tokens, -1, self._head_size)
        query, key, value = torch.split(qkv, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        if self._norm_heads is not None:
            self._norm_heads(query, key)
        if self._tables is not None:
            ops.rope(query, key, batch.positions, *self._tables)
        ops.write_kv(key, value, keys, values, batch.slot_mapping)
        attended = torch.empty(tokens, self._heads, self._head_size, dtype=hidden.dtype, device=hidden.device)
        ops.paged_attention(
            query,
            keys,
            values,
            batch.block_tables,
            batch.query_start,
            batch.context_lens,
            self._scale,
            out=attended,
            window=self._window,
            softcap=self._softcap,
        )
        return self._o(attended.view(tokens, -1))


def _norm_of_heads(
    description: DecoderDescription, weights: dict[str, Tensor]
) -> Callable[[Tensor, Tensor], None] | None:
    """The norm of queries [T, Hq, D] and keys [T, Hkv, D], in place."""
    if description.qk_norm == "none":
        return None
    q_weight, k_weight = weights["q_norm"], weights["k_norm"]
    eps, offset = description.norm_eps, description.norm_offset

    def each(query: Tensor, key: Tensor) -> None:
        ops.head_rms_norm(query, key, q_weight, k_weight, eps, offset=offset)

    def whole(query: Tensor, key: Tensor) -> None:
        for heads, weight in ((query.flatten(1), q_weight), (key.flatten(1), k_weight)):
            ops.rms_norm(heads, weight, eps, out=heads, offset=offset)

    return each if description.qk_norm == "head" else whole
