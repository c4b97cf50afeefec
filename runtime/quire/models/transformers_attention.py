"""Paged attention in place of a transformers model's own.

transformers hands queries, keys and values of every attention layer to a function that can be chosen by name. Ours passes
them on to whatever is current: to the `Recorder` while a model is examined, to a step's cache while it computes. This module
knows no configuration and imports no transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from quire.models.executor import Batch, KVPool
from quire_kernels import ops


@dataclass(frozen=True)
class AttentionLayer:
    """One layer that attends, as its call told. `index` is its place in the KV pool, `module` its name in the model.

    window, softcap: as `ops.paged_attention` has them, 0 for none.
    """

    index: int
    module: str
    num_heads: int
    num_kv_heads: int
    head_size: int
    value_size: int
    scale: float
    window: int
    softcap: float


class _Attends(Protocol):
    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, call: Mapping[str, Any]) -> Tensor:
        """query, key, value [1, heads, T, size]; returns [1, T, heads, value size]."""
        ...


_current: ContextVar[_Attends] = ContextVar("attends")


@contextmanager
def attending(through: _Attends) -> Iterator[None]:
    """Attention layers called inside go to `through`."""
    token = _current.set(through)
    try:
        yield
    finally:
        _current.reset(token)


def attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **call: Any
) -> tuple[Tensor, None]:
    """What is registered with transformers (the signature of its attention interface)."""
    return _current.get().attend(module, query, key, value, {**call, "attention_mask": attention_mask}), None


class Recorder:
    """Learns the attention layers of a model from one call of it; the tensors may have no content."""

    def __init__(self, model: nn.Module) -> None:
        self.layers: list[AttentionLayer] = []
        self.faults: list[str] = []
        self._names = {module: name for name, module in model.named_modules()}

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, call: Mapping[str, Any]) -> Tensor:
        name = self._names[module]
        self.faults += [f"{name} {fault}" for fault in _faults(module, query, key, call)]
        if any(layer.module == name for layer in self.layers):
            self.faults.append(f"{name} attends more than once")
        scaling = call.get("scaling")
        self.layers.append(
            AttentionLayer(
                index=len(self.layers),
                module=name,
                num_heads=query.shape[1],
                num_kv_heads=key.shape[1],
                head_size=key.shape[3],
                value_size=value.shape[3],
                scale=float(query.shape[3] ** -0.5 if scaling is None else scaling),
                window=int(call.get("sliding_window") or 0),
                softcap=float(call.get("softcap") or 0.0),
            )
        )
        return query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])


def _faults(module: nn.Module, query: Tensor, key: Tensor, call: Mapping[str, Any]) -> list[str]:
    """What a call asks for that paged attention does not do."""
    causal = call.get("is_causal")
    return [
        fault
        for found, fault in (
            (call.get("attention_mask") is not None, "brings a mask of its own (ALiBi is such a one)"),
            (call.get("position_bias") is not None, "adds a position bias to the scores"),
            (call.get("s_aux") is not None, "has attention sinks"),
            (not (getattr(module, "is_causal", True) if causal is None else causal), "also looks ahead"),
            (query.shape[2] != key.shape[2], "attends to other tokens than its own"),
        )
        if found
    ]


class PagedStep:
    """One forward pass: writes keys and values of the batch to the pool, attends through the block tables."""

    __slots__ = ("_batch", "_dtype", "_kv", "_layers")

    def __init__(self, layers: Mapping[nn.Module, AttentionLayer], batch: Batch, kv: KVPool, dtype: torch.dtype):
        self._layers = layers
        self._batch = batch
        self._kv = kv
        self._dtype = dtype

    def attend(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, call: Mapping[str, Any]) -> Tensor:
        layer, batch = self._layers[module], self._batch
        keys, values = self._kv.keys[layer.index], self._kv.values[layer.index]
        padding = layer.head_size - layer.value_size
        if padding:
            value = functional.pad(value, (0, padding))
        ops.write_kv(self._rows(key), self._rows(value), keys, values, batch.slot_mapping)
        out = ops.paged_attention(
            self._rows(query),
            keys,
            values,
            batch.block_tables,
            batch.query_start,
            batch.context_lens,
            layer.scale,
            window=layer.window,
            softcap=layer.softcap,
        )
        return (out[..., : layer.value_size] if padding else out).unsqueeze(0)

    def _rows(self, tensor: Tensor) -> Tensor:
        """[1, heads, T, size] to [T, heads, size] of the model's type, its last dimension contiguous."""
        rows = tensor.squeeze(0).transpose(0, 1).to(self._dtype)
        return rows if rows.stride(-1) == 1 else rows.contiguous()
