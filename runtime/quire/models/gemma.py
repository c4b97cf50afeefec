"""Gemma 2 (arXiv:2408.00118) and the text part of Gemma 3 (arXiv:2503.19786): norms around both halves, gelu, layers
with windows between layers without. Gemma 2 caps scores and logits; Gemma 3 normalises heads and turns layers with
windows more quickly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quire.models import gguf_config, hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config

HF_NAMES = hf_config.NAMES.with_layer(
    attn_out_norm="model.layers.{i}.post_attention_layernorm.weight",
    mlp_norm="model.layers.{i}.pre_feedforward_layernorm.weight",
    mlp_out_norm="model.layers.{i}.post_feedforward_layernorm.weight",
)

GGUF_NAMES = gguf_config.NAMES.with_layer(
    attn_out_norm="blk.{i}.post_attention_norm.weight", mlp_out_norm="blk.{i}.post_ffw_norm.weight"
)


def gemma2_from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Gemma2Config)."""
    return hf_config.describe(
        config,
        "gemma2",
        windows=hf_config.windows(config, config.integer("sliding_window", 4096), lambda layer: layer % 2 == 0),
        attention_softcap=config.maybe_number("attn_logit_softcapping") or 0.0,
        logit_softcap=config.maybe_number("final_logit_softcapping") or 0.0,
        **_common(config),
    )


def gemma3_from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Gemma3TextConfig)."""
    period = config.integer("sliding_window_pattern", config.integer("_sliding_window_pattern", 6))
    window = config.integer("sliding_window", 4096)
    windows = hf_config.windows(config, window, lambda layer: (layer + 1) % period != 0)
    head_size = config.integer("head_dim", 256)
    kinds = config.section("rope_parameters") or Fields({}, config.path)
    far = rope_from_config(config, head_size, theta=1_000_000.0, section=kinds.section("full_attention"))
    local = kinds.section("sliding_attention") or Fields({}, config.path)
    theta = local.number("rope_theta", config.number("rope_local_base_freq", 10_000.0))
    near = rope_from_config(config, head_size, section=Fields(local.values | {"rope_theta": theta}, config.path))
    return hf_config.describe(
        config,
        "gemma3",
        windows=windows,
        rope=far,
        layer_ropes=tuple(near if window else far for window in windows),
        qk_norm="head",
        logit_softcap=config.maybe_number("final_logit_softcapping") or 0.0,
        **_common(config),
    )


def _common(config: Fields) -> dict[str, Any]:
    bias = config.flag("attention_bias")
    return {
        "head_size": config.integer("head_dim", 256),
        "norm_offset": 1.0,
        "norm_placement": "sandwich",
        "activation": hf_config.activation(config, "hidden_activation", "gelu_pytorch_tanh"),
        "query_scale": config.number("query_pre_attn_scalar", 256) ** -0.5,
        "embedding_scale": config.integer("hidden_size") ** 0.5,
        "tie_embeddings": config.flag("tie_word_embeddings", True),
        "qkv_bias": bias,
        "o_bias": bias,
    }


def gemma2_from_gguf(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> DecoderDescription:
    """The description of a GGUF file; arguments as `gguf_config.describe` has them.

    The file's norm weights are whole (the converter adds the 1), and it does not tell the factor of the scores: it is that of
    the head size in the 2B and 9B models, and that of hidden size per head in the one with 46 layers.
    """
    d = gguf_config.describe(fields, tensors, rope_factors, "gemma2")
    window = fields.integer("gemma2.attention.sliding_window", 4096)
    return replace(
        d,
        norm_placement="sandwich",
        activation="gelu_tanh",
        query_scale=(d.hidden_size / d.num_heads) ** -0.5 if d.num_layers == 46 else None,
        embedding_scale=d.hidden_size**0.5,
        windows=tuple(0 if layer % 2 else window for layer in range(d.num_layers)),
        attention_softcap=fields.number("gemma2.attn_logit_softcapping", 50.0),
        logit_softcap=fields.number("gemma2.final_logit_softcapping", 30.0),
    )
