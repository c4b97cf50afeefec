"""Tiny random Llama models as files: a Hugging Face folder, a sharded one, and a GGUF file with the same weights.

Weights are large enough that greedy answers vary and logits are far apart; transformers is the reference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from quire.models import llama
from quire.models.description import NameMap

VOCAB = 199
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.15,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def make_model(**changes: Any) -> Any:
    """A random LlamaForCausalLM in float32; always the same for the same changes."""
    torch.set_num_threads(1)  # threads that wait for each other are slower than one on a tiny model
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(LlamaConfig(**(SIZES | changes)))
    model.float().eval()
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.2)
    model.generation_config.pad_token_id = 0
    return model


def save_folder(model: Any, folder: Path, *, sharded: bool = False) -> Path:
    """config.json and safetensors, in several files if wished."""
    model.save_pretrained(folder, max_shard_size="60KB" if sharded else "1GB")
    assert (len(list(folder.glob("*.safetensors"))) > 1) == sharded
    return folder


def save_gguf(model: Any, path: Path, *, names: NameMap = llama.GGUF_NAMES) -> Path:
    """A GGUF file in float32, with q and k rows in llama.cpp's order."""
    config, state = model.config, model.state_dict()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_eos_token_id(config.eos_token_id)
    for parameter, name in hf_names(config.num_hidden_layers, tied=config.tie_word_embeddings).items():
        values = state[name]
        if parameter.endswith((".q", ".k")):
            heads = config.num_attention_heads if parameter.endswith(".q") else config.num_key_value_heads
            values = permute(values, heads)
        writer.add_tensor(names.tensor_name(parameter), values.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hf_names(num_layers: int, *, tied: bool) -> dict[str, str]:
    """Parameter to tensor name of a Hugging Face checkpoint without biases."""
    names = {parameter: name for parameter, name in llama.HF_NAMES.top.items() if not (tied and parameter == "head")}
    for layer in range(num_layers):
        for parameter in llama.HF_NAMES.layer:
            if not parameter.endswith("_bias") and parameter not in ("q_norm", "k_norm"):
                full = f"layers.{layer}.{parameter}"
                names[full] = llama.HF_NAMES.tensor_name(full)
    return names


def permute(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """The converter's reordering of q and k (convert_hf_to_gguf.py, LlamaModel.permute)."""
    half = rows.shape[0] // heads // 2
    return rows.view(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def greedy(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    """transformers' own greedy answer."""
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False)
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer
