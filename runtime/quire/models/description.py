"""What a decoder-only model is, as data: the one thing that every executor reads.

A frozen description says which computations a model has; a new idea in models is a new field here and its meaning in the
executors. `parameters()` names every weight with its shape, which is what loaders fill and memory plans count. No
torch, no file names: the architecture files (`llama`) map names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding. `factors` divide the frequencies one by one (llama3, longrope), `scale` all of them."""

    theta: float
    dim: int
    scale: float = 1.0
    factors: tuple[float, ...] = ()

    def inverse_frequencies(self) -> list[float]:
        """dim/2 angular steps per position (arXiv:2104.09864, section 3.2.2), scaled."""
        plain = [self.theta ** (-i / self.dim) / self.scale for i in range(0, self.dim, 2)]
        return [f / d for f, d in zip(plain, self.factors, strict=True)] if self.factors else plain


def llama3_factors(
    rope: Rope, *, factor: float, low_freq_factor: float, high_freq_factor: float, original_len: int
) -> tuple[float, ...]:
    """Divisors of Llama 3.1: long wavelengths by `factor`, short ones by 1, between them a smooth passage."""
    divisors = []
    for frequency in rope.inverse_frequencies():
        wavelength = 2 * math.pi / frequency
        smooth = (original_len / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor)
        smooth = min(max(smooth, 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return tuple(divisors)


@dataclass(frozen=True)
class DecoderDescription:
    """A decoder with pre-norm RMSNorm blocks, rotary positions, grouped-query attention and a gated MLP."""

    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_model_len: int
    norm_eps: float
    rope: Rope
    tie_embeddings: bool
    activation: Literal["silu"] = "silu"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    eos_token_ids: tuple[int, ...] = ()
    checkpoint_dtype: str = "float32"
    quantization: str = "none"

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def attention_scale(self) -> float:
        return float(self.head_size**-0.5)

    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape (rows are outputs) of one layer's weights."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "attn_norm": (hidden,),
            "q": (self.q_size, hidden),
            "k": (self.kv_size, hidden),
            "v": (self.kv_size, hidden),
            "o": (hidden, self.q_size),
            "mlp_norm": (hidden,),
            "gate": (inner, hidden),
            "up": (inner, hidden),
            "down": (hidden, inner),
        }
        if self.qkv_bias:
            shapes |= {"q_bias": (self.q_size,), "k_bias": (self.kv_size,), "v_bias": (self.kv_size,)}
        if self.o_bias:
            shapes["o_bias"] = (hidden,)
        if self.mlp_bias:
            shapes |= {"gate_bias": (inner,), "up_bias": (inner,), "down_bias": (hidden,)}
        return shapes

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of all weights: `embed`, `norm`, `head` (unless tied) and `layers.<i>.<name>`."""
        shapes: dict[str, tuple[int, ...]] = {
            "embed": (self.vocab_size, self.hidden_size),
            "norm": (self.hidden_size,),
        }
        if not self.tie_embeddings:
            shapes["head"] = (self.vocab_size, self.hidden_size)
        for layer in range(self.num_layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in self.layer_parameters().items()}
        return shapes

    def num_parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.parameters().values())

    def num_weights(self) -> int:
        """Numbers in memory once loaded; a tied head packed for the CPU is a second copy of the embedding."""
        return self.num_parameters() + (self.vocab_size * self.hidden_size if self.tie_embeddings else 0)

    def activations_per_token(self) -> int:
        """Numbers alive in the widest moment of a step, for one token of the batch; logits not counted."""
        return 3 * self.hidden_size + 2 * self.q_size + 2 * self.kv_size + 3 * self.intermediate_size

    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers, keys and values together."""
        return 2 * self.num_layers * self.kv_size


@dataclass(frozen=True)
class NameMap:
    """How a checkpoint format names the weights.

    top: parameter to tensor name. layer: the same with `{i}` for the layer. ignored: suffixes of tensors that carry
    nothing this engine needs. unpermute: layer weights whose rows are stored in pairs (llama.cpp's order for `llama`).
    """

    top: dict[str, str]
    layer: dict[str, str]
    ignored: tuple[str, ...] = ()
    unpermute: frozenset[str] = frozenset()

    def tensor_name(self, parameter: str) -> str:
        """The tensor that holds a parameter of `DecoderDescription.parameters`."""
        if parameter.startswith("layers."):
            _, layer, name = parameter.split(".", 2)
            return self.layer[name].format(i=layer)
        return self.top[parameter]
