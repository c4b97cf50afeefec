"""GLM-4 (arXiv:2406.12793): half of each head is rotated, in pairs; Glm4ForCausalLM has norms around both halves."""

from __future__ import annotations

from dataclasses import replace

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config

GLM_NAMES = replace(
    hf_config.NAMES.with_layer(**dict.fromkeys(("gate", "up"), "model.layers.{i}.mlp.gate_up_proj.weight")),
    unpermute=frozenset({"q", "k", "q_bias", "k_bias"}),
)
GLM4_NAMES = GLM_NAMES.with_layer(
    attn_out_norm="model.layers.{i}.post_self_attn_layernorm.weight",
    mlp_out_norm="model.layers.{i}.post_mlp_layernorm.weight",
)


def glm_from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' GlmConfig)."""
    head_size = config.integer("head_dim", 128)
    return hf_config.describe(
        config,
        "glm",
        head_size=head_size,
        norm_eps=config.number("rms_norm_eps", 1.5625e-07),
        rope=rope_from_config(config, head_size, rotated=0.5),
        qkv_bias=config.flag("attention_bias", True),
    )


def glm4_from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Glm4Config)."""
    return replace(glm_from_config(config), architecture="glm4", norm_placement="sandwich")
