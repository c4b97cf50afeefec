"""One layer's attention: projections, norms of queries and keys, rotation, the paged cache."""

from __future__ import annotations

import torch
from torch import Tensor

from quire.models.description import DecoderDescription
from quire.models.executor import Batch
from quire.models.linear import pack
from quire.models.norm import make_norm
from quire.models.rope import Tables
from quire_kernels import ops


class Attention:
    """Causal grouped-query attention of a layer over its part of the KV pool.

    Keys and values of the whole batch are written before attention reads: sequences of one step may therefore share
    blocks that are filled in that very step.
    """

    def __init__(
        self, description: DecoderDescription, layer: int, weights: dict[str, Tensor], tables: Tables | None
    ) -> None:
        """weights: the layer's, fused (see `decoder.STACKED`); what is packed is taken out. tables: None for no rotation."""
        d = description
        self._qkv = pack(weights.pop("qkv"), weights.get("qkv_bias"))
        self._o = pack(weights.pop("o"), weights.get("o_bias"))
        self._q_norm, self._k_norm = make_norm(d, weights.get("q_norm")), make_norm(d, weights.get("k_norm"))
        self._norms = d.qk_norm
        self._tables = tables
        self._heads = d.num_heads
        self._kv_heads = d.num_kv_heads
        self._head_size = d.head_size
        self._scale = d.attention_scale

    def __call__(self, hidden: Tensor, batch: Batch, keys: Tensor, values: Tensor) -> Tensor:
        """hidden [T, H] to [T, H]; keys and values are the layer's caches."""
        tokens = hidden.shape[0]
        qkv = self._qkv(hidden).view(tokens, -1, self._head_size)
        query, key, value = torch.split(qkv, [self._heads, self._kv_heads, self._kv_heads], dim=1)
        if self._norms != "none":
            query, key = self._normed(query, key)
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
        )
        return self._o(attended.view(tokens, -1))

    def _normed(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        width = -1 if self._norms == "whole" else self._head_size
        rows = [
            heads.reshape(heads.shape[0], -1) if width == -1 else heads.reshape(-1, width) for heads in (query, key)
        ]
        return self._q_norm(rows[0]).view(query.shape), self._k_norm(rows[1]).view(key.shape)
