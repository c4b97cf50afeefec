"""OLMo 2 (arXiv:2501.00656): norms after both halves, none before; queries and keys are normalised whole."""

from __future__ import annotations

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

HF_NAMES = hf_config.NAMES.with_layer(
    attn_out_norm="model.layers.{i}.post_attention_layernorm.weight",
    mlp_out_norm="model.layers.{i}.post_feedforward_layernorm.weight",
)


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Olmo2Config)."""
    bias = config.flag("attention_bias")
    return hf_config.describe(
        config,
        "olmo2",
        norm_eps=config.number("rms_norm_eps", 1e-5),
        norm_placement="post",
        qk_norm="whole",
        qkv_bias=bias,
        o_bias=bias,
    )
