"""The Llama family: Llama 2 and 3, SmolLM2, and whatever calls itself LlamaForCausalLM or `llama` in GGUF."""

from __future__ import annotations

from dataclasses import replace

from quire.models.description import DecoderDescription, NameMap, Rope
from quire.models.metadata import Fields
from quire.models.rope_scaling import rope_from_config, rope_from_gguf

HF_NAMES = NameMap(
    top={"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    layer={
        "attn_norm": "model.layers.{i}.input_layernorm.weight",
        "mlp_norm": "model.layers.{i}.post_attention_layernorm.weight",
        **{name: f"model.layers.{{i}}.self_attn.{name}_proj.weight" for name in ("q", "k", "v", "o")},
        **{f"{name}_bias": f"model.layers.{{i}}.self_attn.{name}_proj.bias" for name in ("q", "k", "v", "o")},
        **{name: f"model.layers.{{i}}.mlp.{name}_proj.weight" for name in ("gate", "up", "down")},
        **{f"{name}_bias": f"model.layers.{{i}}.mlp.{name}_proj.bias" for name in ("gate", "up", "down")},
    },
    ignored=("rotary_emb.inv_freq",),
)

GGUF_NAMES = NameMap(
    top={"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
    layer={
        "attn_norm": "blk.{i}.attn_norm.weight",
        "mlp_norm": "blk.{i}.ffn_norm.weight",
        **{name: f"blk.{{i}}.attn_{name}.weight" for name in ("q", "k", "v")},
        **{f"{name}_bias": f"blk.{{i}}.attn_{name}.bias" for name in ("q", "k", "v")},
        "o": "blk.{i}.attn_output.weight",
        "o_bias": "blk.{i}.attn_output.bias",
        **{name: f"blk.{{i}}.ffn_{name}.weight" for name in ("gate", "up", "down")},
        **{f"{name}_bias": f"blk.{{i}}.ffn_{name}.bias" for name in ("gate", "up", "down")},
    },
    ignored=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
    unpermute=frozenset({"q", "k", "q_bias", "k_bias"}),
)


def from_config(config: Fields) -> DecoderDescription:
    """The description of a Hugging Face config.json (fields of transformers' LlamaConfig)."""
    activation = config.values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise config.bad("hidden_act", activation, "silu")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    head_size = config.integer("head_dim", hidden // heads)
    bias = config.flag("attention_bias")
    return DecoderDescription(
        architecture="llama",
        num_layers=config.integer("num_hidden_layers"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_heads=heads,
        num_kv_heads=config.integer("num_key_value_heads", heads),
        head_size=head_size,
        vocab_size=config.integer("vocab_size"),
        max_model_len=config.integer("max_position_embeddings", 2048),
        norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=rope_from_config(config, head_size),
        tie_embeddings=config.flag("tie_word_embeddings"),
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
        eos_token_ids=config.token_ids("eos_token_id"),
        checkpoint_dtype=str(config.values.get("dtype") or config.values.get("torch_dtype") or "float32"),
    )


def from_gguf(
    fields: Fields, tensors: dict[str, tuple[int, ...]], rope_factors: tuple[float, ...]
) -> DecoderDescription:
    """The description of a GGUF file. tensors: name to shape. rope_factors: content of rope_freqs.weight, if there."""
    hidden, heads = fields.integer("llama.embedding_length"), fields.integer("llama.attention.head_count")
    head_size = fields.integer("llama.attention.key_length", hidden // heads)
    rope: Rope = rope_from_gguf(fields, "llama", fields.integer("llama.rope.dimension_count", head_size))
    return DecoderDescription(
        architecture="llama",
        num_layers=fields.integer("llama.block_count"),
        hidden_size=hidden,
        intermediate_size=fields.integer("llama.feed_forward_length"),
        num_heads=heads,
        num_kv_heads=fields.integer("llama.attention.head_count_kv", heads),
        head_size=head_size,
        vocab_size=tensors.get("token_embd.weight", (fields.integer("llama.vocab_size", 1),))[0],
        max_model_len=fields.integer("llama.context_length"),
        norm_eps=fields.number("llama.attention.layer_norm_rms_epsilon", 1e-5),
        rope=replace(rope, factors=rope_factors) if rope_factors else rope,
        tie_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        o_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        eos_token_ids=fields.token_ids("tokenizer.ggml.eos_token_id"),
        quantization="gguf",
    )
