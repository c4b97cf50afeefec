"""The encoder in torch: word, position and segment embeddings, then blocks of attention and an MLP, each added and normalised after.

A batch has no padding: prompts lie one after the other, those of equal length side by side, and attention takes each length as a
batch of its own. So what else is in a step changes an answer only as far as products of other sizes round differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from quire.errors import ConfigError
from quire.models.checkpoint import SafetensorsCheckpoint, fill, fitting
from quire.models.encoder_description import NAMES, EncoderDescription, EncoderModel
from quire.models.executor import Footprint
from quire.models.precision import AT_LOAD, AUTO, DTYPES, Precision

_STACKED = ("q", "k", "v")


@dataclass(frozen=True, slots=True)
class EncoderBatch:
    """T tokens of S prompts, prompt after prompt, their lengths in ascending order.

    token_ids, positions, token_type_ids  [T] int64
    lengths  of the prompts
    """

    token_ids: Tensor
    positions: Tensor
    token_type_ids: Tensor
    lengths: Sequence[int]


def precision(model: EncoderModel, device: torch.device, *, dtype: str, quantization: str) -> Precision:
    """The checkpoint's type where nobody says otherwise, on a CPU float32: encoders are small, and their vectors are compared. Raises
    ConfigError."""
    if quantization in AT_LOAD:
        raise ConfigError(f"--quantization {quantization}: encoders are computed unquantised; leave it out")
    auto = "float32" if device.type == "cpu" else model.description.checkpoint_dtype
    return Precision.of(DTYPES.get(auto if dtype == AUTO else dtype, torch.float32))


def footprint(d: EncoderDescription, dtype: torch.dtype, max_model_len: int) -> Footprint:
    """What an `Encoder` holds. Of attention it counts all scores, which some kernels make at once."""
    hidden, inner = d.hidden_size, d.intermediate_size
    attention = 8 * hidden + d.num_heads * (max_model_len + 2)  # queries, keys, values, the answer in two orders
    activations = hidden + max(attention, 2 * inner + 2 * hidden)
    largest = max(d.vocab_size, 3 * hidden, inner) * hidden
    return Footprint(
        d.num_parameters() * dtype.itemsize, activations * dtype.itemsize, dtype.itemsize, largest * dtype.itemsize
    )


class Encoder:
    """A model's weights and forward pass. Reads the files strictly; raises ModelError naming file and tensor."""

    name = "encoder"

    def __init__(self, model: EncoderModel, dtype: torch.dtype, device: torch.device) -> None:
        self.description = d = model.description
        self.device = device
        self.dtype = dtype
        targets: dict[str, Tensor] = {}

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        self._top = {name: empty(*shape) for name, shape in d.parameters().items() if not name.startswith("layers.")}
        targets |= self._top
        self._layers: list[dict[str, Tensor]] = []
        for layer in range(d.num_layers):
            shapes = d.layer_parameters()
            weights = {"qkv": empty(3 * d.hidden_size, d.hidden_size), "qkv_bias": empty(3 * d.hidden_size)}
            for stored, suffix in (("qkv", ""), ("qkv_bias", "_bias")):
                for part, view in zip(_STACKED, weights[stored].chunk(3), strict=True):
                    targets[f"layers.{layer}.{part}{suffix}"] = view
                    del shapes[part + suffix]
            for name, shape in shapes.items():
                weights[name] = targets[f"layers.{layer}.{name}"] = empty(*shape)
            self._layers.append(weights)
        folder = model.files.path
        fill(SafetensorsCheckpoint(folder, d, fitting(folder, NAMES)), targets)

    @torch.inference_mode()
    def forward(self, batch: EncoderBatch) -> Tensor:
        """Hidden states [T, H]."""
        top = self._top
        hidden = functional.embedding(batch.token_ids, top["embed"])
        hidden += functional.embedding(batch.positions, top["positions"])
        hidden += functional.embedding(batch.token_type_ids, top["types"])
        hidden = self._norm(hidden, top, "embed_norm")
        for layer in self._layers:
            attended = self._linear(self._attention(self._linear(hidden, layer, "qkv"), batch.lengths), layer, "o")
            hidden = self._norm(attended.add_(hidden), layer, "attn_norm")
            inner = _activated(self._linear(hidden, layer, "up"), self.description.activation)
            hidden = self._norm(self._linear(inner, layer, "down").add_(hidden), layer, "mlp_norm")
        return hidden

    @torch.inference_mode()
    def judge(self, hidden: Tensor) -> Tensor:
        """What the head says, [S, 1], of hidden states [S, H] of first tokens."""
        pooled = self._linear(hidden, self._top, "pooler").tanh_()
        logits = self._linear(pooled, self._top, "classifier")
        return logits.sigmoid_() if self.description.head == "sigmoid" else logits

    def _attention(self, qkv: Tensor, lengths: Sequence[int]) -> Tensor:
        """Every token of a prompt sees all of it. qkv: [T, 3H]; [T, H] comes back."""
        d = self.description
        out = qkv.new_empty(qkv.shape[0], d.hidden_size)
        start = 0
        for length, same in groupby(lengths):
            count = sum(1 for _ in same)
            end = start + count * length
            parts = qkv[start:end].view(count, length, 3, d.num_heads, -1).permute(2, 0, 3, 1, 4)
            attended = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            out[start:end] = attended.transpose(1, 2).reshape(end - start, d.hidden_size)
            start = end
        return out

    def _linear(self, values: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
        return functional.linear(values, weights[name], weights[f"{name}_bias"])

    def _norm(self, values: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
        shape = (self.description.hidden_size,)
        return functional.layer_norm(values, shape, weights[name], weights[f"{name}_bias"], self.description.norm_eps)


def _activated(values: Tensor, activation: str) -> Tensor:
    match activation:
        case "relu":
            return values.relu_()
        case "silu":
            return functional.silu(values, inplace=True)
    return functional.gelu(values, approximate="tanh" if activation == "gelu_tanh" else "none")
