"""SmolLM3: Llama of which every fourth layer sees no positions (NoPE, arXiv:2501.18795), and may have a window."""

from __future__ import annotations

from quire.models import hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config

HF_NAMES = hf_config.NAMES


def from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' SmolLM3Config; `no_rope_layers` lists 1 for rotated ones)."""
    layers = config.count("num_hidden_layers")
    head_size = config.integer("head_dim", config.integer("hidden_size") // config.integer("num_attention_heads"))
    every = config.integer("no_rope_layer_interval", 4)
    rotated = config.items("no_rope_layers", layers) or [int((layer + 1) % every != 0) for layer in range(layers)]
    rope = rope_from_config(config, head_size, theta=2_000_000.0)
    window = config.maybe_integer("sliding_window") if config.flag("use_sliding_window") else None
    bias = config.flag("attention_bias")
    return hf_config.describe(
        config,
        "smollm3",
        rope=rope,
        layer_ropes=tuple(rope if turns else None for turns in rotated),
        windows=hf_config.windows(config, window, lambda layer: not rotated[layer]),
        tie_embeddings=config.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )
