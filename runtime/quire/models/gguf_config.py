"""What most architectures write into GGUF alike. An architecture's file adds what is its own."""

from __future__ import annotations

from typing import Any

from quire.models.description import DecoderDescription, NameMap
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_gguf

NAMES = NameMap(
    top={"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
    layer={
        "attn_norm": "blk.{i}.attn_norm.weight",
        "mlp_norm": "blk.{i}.ffn_norm.weight",
        **{name: f"blk.{{i}}.attn_{name}.weight" for name in ("q", "k", "v", "q_norm", "k_norm")},
        **{f"{name}_bias": f"blk.{{i}}.attn_{name}.bias" for name in ("q", "k", "v")},
        "o": "blk.{i}.attn_output.weight",
        "o_bias": "blk.{i}.attn_output.bias",
        **{name: f"blk.{{i}}.ffn_{name}.weight" for name in ("gate", "up", "down")},
        **{f"{name}_bias": f"blk.{{i}}.ffn_{name}.bias" for name in ("gate", "up", "down")},
    },
    ignored=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
)
"""The usual names of llama.cpp's models."""


def describe(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...], architecture: str, **own: Any
) -> DecoderDescription:
    """The description of a GGUF file; keys begin with the architecture.

    tensors: name to shape. rope_factors: content of rope_freqs.weight, if there. `own` replaces and adds fields.
    """
    hidden = fields.integer(f"{architecture}.embedding_length")
    heads = fields.integer(f"{architecture}.attention.head_count")
    head_size = fields.integer(f"{architecture}.attention.key_length", hidden // heads)
    rotated = fields.integer(f"{architecture}.rope.dimension_count", head_size)
    common: dict[str, Any] = {
        "architecture": architecture,
        "num_layers": fields.count(f"{architecture}.block_count"),
        "hidden_size": hidden,
        "intermediate_size": fields.integer(f"{architecture}.feed_forward_length"),
        "num_heads": heads,
        "num_kv_heads": fields.integer(f"{architecture}.attention.head_count_kv", heads),
        "head_size": head_size,
        "vocab_size": tensors.get("token_embd.weight", (fields.integer(f"{architecture}.vocab_size", 1),))[0],
        "max_model_len": fields.integer(f"{architecture}.context_length"),
        "norm_eps": fields.number(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5),
        "rope": rope_from_gguf(fields, architecture, rotated, rope_factors),
        "tie_embeddings": "output.weight" not in tensors,
        "qkv_bias": "blk.0.attn_q.bias" in tensors,
        "o_bias": "blk.0.attn_output.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "eos_token_ids": fields.token_ids("tokenizer.ggml.eos_token_id"),
    }
    return DecoderDescription(**(common | own))
