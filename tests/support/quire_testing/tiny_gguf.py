"""Tiny models as GGUF files, with the conventions of llama.cpp's converter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
from torch import Tensor

from quire.models import registry
from quire.models.loader import inspect
from quire.models.source import resolve


def save_gguf(
    model: Any,
    folder: Path,
    path: Path,
    architecture: str = "llama",
    *,
    called: str | None = None,
    types: Sequence[str] = (),
) -> Path:
    """model was saved to folder. called: what the file says it is, where that is not the architecture. types: of its matrices,
    in turn; float32 without any."""
    config, state = model.config, model.state_dict()
    source = inspect(resolve(str(folder)))
    writer = gguf.GGUFWriter(path, called or architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(source.description.head_size)
    writer.add_value_length(source.description.head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_eos_token_id(config.eos_token_id)
    if architecture == "gemma2":
        writer.add_sliding_window(config.sliding_window)
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    names = registry.GGUF[architecture].names
    matrices = 0
    for parameter in source.description.parameters():
        values = state[source.names.tensor_name(parameter)]
        kind = parameter.rpartition(".")[2]
        if architecture == "gemma2" and kind.endswith("norm"):
            values = values + 1
        if architecture == "llama" and kind in ("q", "k"):
            values = permute(values, config.num_attention_heads if kind == "q" else config.num_key_value_heads)
        array = values.contiguous().numpy()
        if not types or array.ndim == 1:
            writer.add_tensor(names.tensor_name(parameter), array)
            continue
        matrices += 1
        form = gguf.GGMLQuantizationType[types[matrices % len(types)]]
        writer.add_tensor(names.tensor_name(parameter), gguf.quantize(array, form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permute(rows: Tensor, heads: int) -> Tensor:
    """The converter's reordering of q and k (convert_hf_to_gguf.py, LlamaModel.permute)."""
    half = rows.shape[0] // heads // 2
    return rows.view(heads, 2, half, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
