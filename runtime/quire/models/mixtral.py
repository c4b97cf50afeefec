"""Mixtral (arXiv:2401.04088): Mistral with experts in place of the MLP."""

from __future__ import annotations

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{e}"
HF_NAMES = hf_config.NAMES.with_layer(
    **{
        "router": "model.layers.{i}.block_sparse_moe.gate.weight",
        "experts.gate": f"{_EXPERT}.w1.weight",
        "experts.down": f"{_EXPERT}.w2.weight",
        "experts.up": f"{_EXPERT}.w3.weight",
    }
)


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' MixtralConfig); experts_per_token must be among them."""
    window = config.maybe_integer("sliding_window")
    return hf_config.describe(
        config,
        "mixtral",
        windows=() if window is None else (window,) * config.count("num_hidden_layers"),
        **hf_config.experts(config, "num_local_experts", 8, default_chosen=2),
    )
