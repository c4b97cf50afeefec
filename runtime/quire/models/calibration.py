"""Which inputs of its matrices matter to a model: the mean squares of what they read while it reads a short text.

A few channels of every model are a thousand times larger than the others (arXiv:2208.07339), and an error in their weights counts as much
more. Rounding to 4 bits chooses its grids by the error of the products instead of that of the weights, which takes these mean
squares (arXiv:2306.00978; llama.cpp calls them an importance matrix).

Torch modules compute the text layer by layer in float32; a matrix is read when its product is made, and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from quire.models.attention import Attention
from quire.models.checkpoint import Checkpoint
from quire.models.description import STACKED, DecoderDescription
from quire.models.executor import Batch
from quire.models.linear import Linear, Pack
from quire.models.mlp import GatedMLP
from quire.models.norm import Norm, make_norm
from quire.models.precision import Precision
from quire.models.rope import make_tables

VERSION = 1
"""Of what is made of a text. Whoever changes that raises it (a test holds figures), so that weights that were kept are made anew."""
MOST_TOKENS = 512
"""Of the text that are read. Four times as many leave the divergence from exact weights as it is."""
SMALLEST = 1e-3
"""Of the mean over a matrix's inputs: one that is idle in this text need not be so in another."""
_BLOCK = 16


def text() -> str:
    """Prose, a chat, code and figures, a little of other languages; written for this."""
    return Path(__file__).with_name("calibration.txt").read_text(encoding="utf-8")


def applies(description: DecoderDescription, precision: Precision) -> bool:
    """Whether a text is read. Not with experts: each would see too little of it."""
    return precision.quantization == "int4" and description.num_experts == 0


def reading_bytes(description: DecoderDescription, checkpoint: Checkpoint) -> int:
    """Memory that a `Calibration` takes at most: a matrix, and rows of the text."""
    d = description
    matrices = (f"layers.0.{name}" for name, shape in d.layer_parameters().items() if len(shape) > 1)
    products = max(2 * (d.q_size + 2 * d.kv_size) + 2 * d.q_size, 6 * d.intermediate_size)
    rows = 5 * d.hidden_size + 2 * d.kv_size + products + 2 * d.head_size * len(d.ropes())
    return max(checkpoint.reading_bytes(name, torch.float32) for name in matrices) + 4 * MOST_TOKENS * rows


class Calibration:
    """The text's hidden states on their way through the layers of a model without experts.

    They depend on the model and the tokens alone, not on how long requests may be here: weights are the same after each start.
    """

    def __init__(self, description: DecoderDescription, checkpoint: Checkpoint, tokens: Sequence[int]) -> None:
        """tokens: at least one, each below the size of the vocabulary."""
        self._description = d = description
        self._checkpoint = checkpoint
        ids = torch.tensor(tokens[: min(MOST_TOKENS, d.max_model_len)])
        self._tables = {rope: make_tables(rope, len(ids), ids.device) for rope in d.ropes()}
        self.hidden = checkpoint.read("embed", checkpoint.dtype_of("embed"))[ids].float() * d.embedding_scale
        at, blocks = torch.arange(len(ids)), -(-len(ids) // _BLOCK)
        self._batch = Batch(
            token_ids=ids,
            positions=at,
            slot_mapping=at,
            block_tables=torch.arange(blocks, dtype=torch.int32)[None],
            query_start=torch.tensor([0, len(ids)], dtype=torch.int32),
            context_lens=torch.tensor([len(ids)], dtype=torch.int32),
            logit_rows=at,
        )
        self._keys, self._values = torch.zeros(2, blocks, _BLOCK, d.num_kv_heads, d.head_size).unbind()

    @torch.inference_mode()
    def layer(self, layer: int) -> dict[str, Tensor]:
        """Mean squares [K] of what the layer's `qkv`, `o`, `gate_up` and `down` read. Layers are asked for in their order."""
        d, seen = self._description, dict[str, Tensor]()
        rope, residual = d.rope_of(layer), self.hidden.clone()
        attention = Attention(
            d,
            layer,
            self._weights(layer, ("qkv", "o"), ("qkv_bias", "o_bias", "q_norm", "k_norm")),
            None if rope is None else self._tables[rope],
            self._watch(layer, ("qkv", "o"), seen),
        )
        mlp = GatedMLP(
            d,
            self._weights(layer, ("gate_up", "down"), ("gate_up_bias", "down_bias")),
            self._watch(layer, ("gate_up", "down"), seen),
        )
        hidden = attention(self._norm(layer, "attn_norm")(residual), self._batch, self._keys, self._values)
        hidden = self._norm(layer, "attn_out_norm")(hidden)
        hidden = mlp(self._norm(layer, "mlp_norm").add(hidden, residual))
        self.hidden = residual + self._norm(layer, "mlp_out_norm")(hidden)
        return seen

    def _watch(self, layer: int, stored: Sequence[str], seen: dict[str, Tensor]) -> Pack:
        """Stands in for `linear.pack` in a module that packs these matrices in this order."""
        left = iter(stored)

        def pack(_: Tensor, bias: Tensor | None) -> Linear:
            name = next(left)

            def product(x: Tensor) -> Tensor:
                squares = x.square().mean(dim=0)
                seen[name] = squares.clamp(min=SMALLEST * float(squares.mean()))
                outputs = [functional.linear(x, self._read(layer, part)) for part in STACKED.get(name, (name,))]
                result = torch.cat(outputs, dim=-1)
                return result if bias is None else result.add_(bias)

            return product

        return pack

    def _norm(self, layer: int, name: str) -> Norm:
        return make_norm(self._description, self._weights(layer, (), (name,)).get(name))

    def _weights(self, layer: int, matrices: Sequence[str], vectors: Sequence[str]) -> dict[str, Tensor]:
        """What a module takes of a layer, with nothing in the place of matrices."""
        held, weights = self._description.layer_parameters(), dict.fromkeys(matrices, torch.empty(0))
        for name in vectors:
            parts = STACKED.get(name, (name,))
            if parts[0] in held:
                weights[name] = torch.cat([self._read(layer, part) for part in parts])
        return weights

    def _read(self, layer: int, name: str) -> Tensor:
        values = self._checkpoint.read(f"layers.{layer}.{name}", torch.float32)
        self._checkpoint.check_finite(f"layers.{layer}.{name}", values)
        return values
