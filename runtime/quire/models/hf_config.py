"""What most architectures write into config.json alike. An architecture's file adds what is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from quire.models.description import DecoderDescription, NameMap
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config, stretched_len

NAMES = NameMap(
    top={"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    layer={
        "attn_norm": "model.layers.{i}.input_layernorm.weight",
        "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
        **{name: f"model.layers.{{i}}.self_attn.{name}_proj.weight" for name in ("q", "k", "v", "o")},
        **{f"{name}_bias": f"model.layers.{{i}}.self_attn.{name}_proj.bias" for name in ("q", "k", "v", "o")},
        **{name: f"model.layers.{{i}}.self_attn.{name}.weight" for name in ("q_norm", "k_norm")},
        **{name: f"model.layers.{{i}}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
        **{f"{name}_bias": f"model.layers.{{i}}.mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
    },
    ignored=("rotary_emb.inv_freq",),
)
"""The usual names of transformers' decoder-only models."""

_ACTIVATIONS: dict[object, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
}


def describe(config: Fields, architecture: str, **own: Any) -> DecoderDescription:
    """Sizes, activation, rotation and end tokens of a config.json; `own` replaces and adds fields of the description."""
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    fields: dict[str, Any] = {
        "architecture": architecture,
        "num_layers": config.count("num_hidden_layers"),
        "hidden_size": hidden,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": heads,
        "num_kv_heads": config.integer("num_key_value_heads", heads),
        "head_size": config.integer("head_dim", hidden // heads),
        "vocab_size": config.integer("vocab_size"),
        "max_model_len": stretched_len(config),
        "norm_eps": config.number("rms_norm_eps", 1e-6),
        "tie_embeddings": config.flag("tie_word_embeddings"),
        "eos_token_ids": config.token_ids("eos_token_id"),
        "checkpoint_dtype": str(config.values.get("dtype") or config.values.get("torch_dtype") or "float32"),
    } | own
    if "activation" not in own:
        fields["activation"] = activation(config, "hidden_act", "silu")
    if "rope" not in own:
        fields["rope"] = rope_from_config(config, fields["head_size"])
    return DecoderDescription(**fields)


def experts(config: Fields, number: str, default: int, *, default_chosen: int) -> dict[str, int]:
    """Fields of the description that count experts. number: the key of how many there are."""
    count, chosen = config.count(number, default), config.integer("num_experts_per_tok", default_chosen)
    if chosen > count:
        raise config.bad("num_experts_per_tok", chosen, f"at most {number} ({count})")
    return {"num_experts": count, "experts_per_token": chosen}


def activation(config: Fields, key: str, default: str) -> Literal["silu", "gelu_tanh"]:
    """The activation a field names."""
    name = config.values.get(key) or default
    if name not in _ACTIVATIONS:
        raise config.bad(key, name, f"one of {', '.join(map(str, _ACTIVATIONS))}")
    return _ACTIVATIONS[name]


def windows(config: Fields, window: int | None, slides: Callable[[int], bool]) -> tuple[int, ...]:
    """Windows per layer from `layer_types`; where those are absent, of the layers of which `slides` is true."""
    layers = config.count("num_hidden_layers")
    kinds = config.items("layer_types", layers)
    if kinds is None:
        kinds = ["sliding_attention" if slides(layer) else "full_attention" for layer in range(layers)]
    for kind in kinds:
        if kind not in ("sliding_attention", "full_attention"):
            raise config.bad("layer_types", kind, "sliding_attention or full_attention")
    if window is None or "sliding_attention" not in kinds:
        return ()
    return tuple(window if kind == "sliding_attention" else 0 for kind in kinds)
