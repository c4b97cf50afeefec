"""Qwen2 (arXiv:2407.10671) and Qwen3 (arXiv:2505.09388): Llama with biases, or with norms of each query and key head."""

from __future__ import annotations

from typing import Any

from quire.models import gguf_config, hf_config
from quire.models.description import DecoderDescription
from quire.models.metadata import Fields

HF_NAMES = hf_config.NAMES
GGUF_NAMES = gguf_config.NAMES


def qwen2_from_config(config: Fields) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Qwen2Config)."""
    return hf_config.describe(config, "qwen2", qkv_bias=True, windows=_windows(config))


def qwen3_from_config(config: Fields, architecture: str = "qwen3", **own: Any) -> DecoderDescription:
    """The description of a config.json (fields of transformers' Qwen3Config); own: fields of a relative."""
    bias = config.flag("attention_bias")
    return hf_config.describe(
        config,
        architecture,
        head_size=config.integer("head_dim", 128),
        qk_norm="head",
        qkv_bias=bias,
        o_bias=bias,
        windows=_windows(config),
        **own,
    )


def _windows(config: Fields) -> tuple[int, ...]:
    if not config.flag("use_sliding_window"):
        return ()
    first = config.values.get("max_window_layers", 28)
    return hf_config.windows(config, config.integer("sliding_window", 4096), lambda layer: layer >= first)


def qwen2_from_gguf(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> DecoderDescription:
    """The description of a GGUF file; arguments as `gguf_config.describe` has them."""
    return gguf_config.describe(fields, tensors, rope_factors, "qwen2")


def qwen3_from_gguf(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> DecoderDescription:
    """The description of a GGUF file; arguments as `gguf_config.describe` has them."""
    return gguf_config.describe(fields, tensors, rope_factors, "qwen3", qk_norm="head")
