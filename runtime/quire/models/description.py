"""What a decoder-only model is, as data: the one thing that every executor reads.

A frozen description says which computations a model has; a new idea in models is a new field here, with a default that
keeps the others as they are, and its meaning in the executors. `parameters()` names every weight with its shape, which is
what loaders fill and memory plans count. No torch, no file names: the architecture files (`llama`, `gemma`) map names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

STACKED: dict[str, tuple[str, ...]] = {
    "qkv": ("q", "k", "v"),
    "qkv_bias": ("q_bias", "k_bias", "v_bias"),
    "gate_up": ("gate", "up"),
    "gate_up_bias": ("gate_bias", "up_bias"),
}
"""Stored matrix to the parameters whose rows it stacks; every other parameter is stored as it is."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first `dim` elements of each head (arXiv:2104.09864).

    scale, factors     divide the frequencies: all of them, and one by one
    attention_factor   multiplies cosine and sine (yarn, longrope)
    original_len       positions the model was trained on; where more are served, `at` takes `long_factors` (longrope) or
                       a larger theta (`ntk_factor`, dynamic NTK)
    """

    theta: float
    dim: int
    scale: float = 1.0
    factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    original_len: int = 0
    long_factors: tuple[float, ...] = ()
    ntk_factor: float = 0.0

    def at(self, num_positions: int) -> Rope:
        """The embedding where `num_positions` positions are served: one for all requests, so that they may share blocks."""
        if num_positions <= self.original_len:
            return self
        if self.long_factors:
            return replace(self, factors=self.long_factors)
        if self.ntk_factor:
            stretch = self.ntk_factor * num_positions / self.original_len - (self.ntk_factor - 1)
            return replace(self, theta=self.theta * stretch ** (self.dim / (self.dim - 2)))
        return self

    def inverse_frequencies(self) -> list[float]:
        """dim/2 angular steps per position (section 3.2.2), scaled."""
        plain = [self.theta ** (-i / self.dim) / self.scale for i in range(0, self.dim, 2)]
        return [f / d for f, d in zip(plain, self.factors, strict=True)] if self.factors else plain


@dataclass(frozen=True)
class DecoderDescription:
    """A decoder: token embedding, blocks of grouped-query attention and a gated MLP, a final norm and a head.

    norm_offset        added to the weights of all norms, which are RMSNorm (arXiv:1910.07467); Gemma stores weight - 1
    norm_placement     of each half of a block: pre: x + f(norm(x)); post: x + norm(f(x)); sandwich: x + norm(f(norm(x)))
    qk_norm            norm of queries and keys before rotation: of each head, or of all heads as one vector
    rope, layer_ropes  the rotation of every layer, or of each one; None: that layer sees no positions
    windows            per layer, how many of the newest tokens a token sees, itself included; 0: all. Empty: all
    *_softcap          scores or logits x become cap * tanh(x / cap); 0: they stay
    query_scale        factor of the scores where it is not head_size ** -0.5
    embedding_scale    factor of the token embeddings, rounded to the model's type
    num_experts        MLPs of intermediate_size each; a router chooses experts_per_token of them for each token. 0: one MLP
    normalise_experts  the shares of the chosen ones sum up to 1
    """

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
    norm_offset: float = 0.0
    norm_placement: Literal["pre", "post", "sandwich"] = "pre"
    qk_norm: Literal["none", "head", "whole"] = "none"
    layer_ropes: tuple[Rope | None, ...] = ()
    windows: tuple[int, ...] = ()
    attention_softcap: float = 0.0
    logit_softcap: float = 0.0
    query_scale: float | None = None
    embedding_scale: float = 1.0
    num_experts: int = 0
    experts_per_token: int = 1
    normalise_experts: bool = True
    activation: Literal["silu", "gelu_tanh"] = "silu"
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
        return float(self.head_size**-0.5) if self.query_scale is None else self.query_scale

    def rope_of(self, layer: int) -> Rope | None:
        return self.layer_ropes[layer] if self.layer_ropes else self.rope

    def ropes(self) -> set[Rope]:
        """The different rotations of its layers."""
        return {rope for layer in range(self.num_layers) if (rope := self.rope_of(layer)) is not None}

    def window_of(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    def layer_parameters(self) -> dict[str, tuple[int, ...]]:
        """Name to shape (rows are outputs) of one layer's weights."""
        hidden, inner = self.hidden_size, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {
            "q": (self.q_size, hidden),
            "k": (self.kv_size, hidden),
            "v": (self.kv_size, hidden),
            "o": (hidden, self.q_size),
        }
        mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
        if self.num_experts:
            shapes["router"] = (self.num_experts, hidden)
            shapes |= {f"experts.{e}.{name}": shape for e in range(self.num_experts) for name, shape in mlp.items()}
        else:
            shapes |= mlp
        if self.norm_placement != "post":
            shapes |= {"attn_norm": (hidden,), "mlp_norm": (hidden,)}
        if self.norm_placement != "pre":
            shapes |= {"attn_out_norm": (hidden,), "mlp_out_norm": (hidden,)}
        if self.qk_norm == "head":
            shapes |= {"q_norm": (self.head_size,), "k_norm": (self.head_size,)}
        elif self.qk_norm == "whole":
            shapes |= {"q_norm": (self.q_size,), "k_norm": (self.kv_size,)}
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

    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers, keys and values together."""
        return 2 * self.num_layers * self.kv_size

    def table_elements_per_position(self) -> int:
        """Float32 numbers kept for each position that is served: cosines and sines of every different rotation."""
        return sum(rope.dim for rope in self.ropes())


@dataclass(frozen=True)
class NameMap:
    """How a checkpoint format names the weights.

    top        parameter to tensor name
    layer      the same with `{i}` for the layer, and `{e}` for the expert in `experts.<name>`. Parameters that name one tensor are stacked in it, rows of the first
               first, in the order of `DecoderDescription.layer_parameters`
    ignored    suffixes of tensors that carry nothing this engine needs
    unpermute  layer weights of queries and keys whose rotated rows are stored in pairs (2i, 2i + 1) that turn together;
               loaded, they lie in halves (i, i + dim/2), which gives the same scores
    """

    top: dict[str, str]
    layer: dict[str, str]
    ignored: tuple[str, ...] = ()
    unpermute: frozenset[str] = frozenset()

    def tensor_name(self, parameter: str) -> str:
        """The tensor that holds a parameter of `DecoderDescription.parameters`."""
        if parameter.startswith("layers."):
            _, layer, name = parameter.split(".", 2)
            if name.startswith("experts."):
                _, expert, name = name.split(".")
                return self.layer[f"experts.{name}"].format(i=layer, e=expert)
            return self.layer[name].format(i=layer)
        return self.top[parameter]

    def tensors(self, parameters: list[str]) -> dict[str, list[str]]:
        """Tensor name to the parameters stacked in it, in order."""
        held: dict[str, list[str]] = {}
        for parameter in parameters:
            held.setdefault(self.tensor_name(parameter), []).append(parameter)
        return held

    def without(self, prefix: str) -> NameMap:
        """The same for files that leave out the beginning of all names."""
        top, layer = (
            {parameter: name.removeprefix(prefix) for parameter, name in names.items()}
            for names in (self.top, self.layer)
        )
        return replace(self, top=top, layer=layer)

    def with_layer(self, **changes: str) -> NameMap:
        """The same with other or more layer names."""
        return replace(self, layer=self.layer | changes)
