"""The random Qwen2 folder as a GGUF file for llama.cpp, with the tokenizer of another GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import torch
from safetensors.torch import load_file

from quire.models import registry
from quire.models.loader import NativeModel, inspect
from quire.models.source import resolve


def write(source: Path, tokenizer: Path, target: Path) -> None:
    """source: a Hugging Face folder of a Qwen2 model in one safetensors file. tokenizer: a GGUF file whose vocabulary it has."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    writer = gguf.GGUFWriter(target, "qwen2")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"]))
    for field in gguf.GGUFReader(tokenizer).fields.values():
        if field.name.startswith("tokenizer."):
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if len(field.types) > 1 else None)
    model, theirs = inspect(resolve(str(source))), registry.GGUF["qwen2"].names
    assert isinstance(model, NativeModel)
    names = {model.names.tensor_name(one): theirs.tensor_name(one) for one in model.description.parameters()}
    for name, tensor in tensors.items():
        if name not in names:
            raise ValueError(f"{source}: no GGUF name for {name}")
        if tensor.dim() == 1:
            writer.add_tensor(names[name], tensor.float().numpy())
        else:
            raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(names[name], raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
