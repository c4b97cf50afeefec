"""Phi-3 and Phi-4 (arXiv:2404.14219): Llama with fused projections, and positions stretched by longrope."""

from __future__ import annotations

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config

HF_NAMES = hf_config.NAMES.with_layer(
    **dict.fromkeys(("q", "k", "v"), "model.layers.{i}.self_attn.qkv_proj.weight"),
    **dict.fromkeys(("gate", "up"), "model.layers.{i}.mlp.gate_up_proj.weight"),
)


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Phi3Config)."""
    window = config.maybe_integer("sliding_window")
    head_size = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
    key = "rope_parameters" if config.section("rope_parameters") else "rope_scaling"
    section = config.section(key) or Fields({}, config.path)
    kind = section.values.get("rope_type", section.values.get("type"))
    if kind in ("su", "yarn"):  # names that longrope had in early files
        section = Fields(section.values | {"rope_type": "longrope"}, config.path)
    return hf_config.describe(
        config,
        "phi3",
        head_size=head_size,
        norm_eps=config.number("rms_norm_eps", 1e-5),
        rope=rope_from_config(config, head_size, section=section),
        windows=() if window is None else (window,) * config.count("num_hidden_layers"),
    )
