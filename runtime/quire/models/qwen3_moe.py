"""Qwen3-MoE (arXiv:2505.09388): Qwen3 with experts in place of the MLP."""

from __future__ import annotations

from quire.models import hf_config, qwen
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

_EXPERT = "model.layers.{i}.mlp.experts.{e}"
HF_NAMES = hf_config.NAMES.with_layer(
    **{
        "router": "model.layers.{i}.mlp.gate.weight",
        **{f"experts.{name}": f"{_EXPERT}.{name}_proj.weight" for name in ("gate", "up", "down")},
    }
)


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Qwen3MoeConfig). Layers without experts are refused."""
    if (dense := config.values.get("mlp_only_layers")) not in (None, []):
        raise config.bad("mlp_only_layers", dense, "empty (each layer with experts)")
    if (step := config.values.get("decoder_sparse_step", 1)) != 1:
        raise config.bad("decoder_sparse_step", step, "1 (each layer with experts)")
    number = "num_experts" if "num_experts" in config.values else "num_local_experts"
    return qwen.qwen3_from_config(
        config,
        architecture="qwen3_moe",
        intermediate_size=config.integer("moe_intermediate_size", 768),
        normalise_experts=config.flag("norm_topk_prob"),
        **hf_config.experts(config, number, 128, default_chosen=8),
    )
