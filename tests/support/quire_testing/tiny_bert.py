"""Tiny random BERT models as Hugging Face folders, with a WordPiece tokenizer and the files of sentence-transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, BertModel

WORDS = ("the", "cat", "sat", "on", "mat", "dog", "ran", "in", "park", "rain", "##s", "##ing", "king", "queen", "?")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCAB = {word: i for i, word in enumerate((*SPECIAL, *WORDS, *"abcdefghijklmnopqrstuvwxyz"))}
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCAB),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
MODULES = ("Transformer", "Pooling", "Normalize")


def make_bert(*, head: bool = False, **changes: Any) -> Any:
    """A random BertModel, or one with a head of one label; always the same for the same changes."""
    torch.set_num_threads(1)
    torch.manual_seed(11)
    config = BertConfig(**(SIZES | ({"num_labels": 1} if head else {}) | changes))
    model: Any = BertForSequenceClassification(config) if head else BertModel(config)
    model.float().eval()
    for name, parameter in model.named_parameters():
        if "LayerNorm" in name or name.endswith("bias"):
            torch.nn.init.normal_(parameter, mean=1.0 if name.endswith("LayerNorm.weight") else 0.0, std=0.2)
    return model


def save_bert(model: Any, folder: Path, *, pooling: str | None = "mean", modules: Sequence[str] = MODULES) -> Path:
    """pooling: what the files of sentence-transformers say; None: there are none."""
    model.save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    if pooling is not None:
        write_modules(folder, pooling, modules)
    return folder


def write_modules(folder: Path, pooling: str, modules: Sequence[str] = MODULES) -> None:
    """`modules.json` and the configuration of the pooling module, as sentence-transformers writes them."""
    places = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": places.get(kind, f"{i}_{kind}"),
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    said = {f"pooling_mode_{mode}": mode.startswith(pooling) and "sqrt" not in mode for mode in modes}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **said}))


def tokenizer() -> Tokenizer:
    """WordPiece, lower case, with [CLS] and [SEP]."""
    made = Tokenizer(models.WordPiece(VOCAB, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.BertProcessing(("[SEP]", VOCAB["[SEP]"]), ("[CLS]", VOCAB["[CLS]"]))
    made.decoder = decoders.WordPiece(prefix="##")
    made.add_special_tokens(list(SPECIAL))
    return made


def reference_vector(
    model: Any, ids: Sequence[int], pooling: str, *, normalise: bool = True, types: Sequence[int] = ()
) -> torch.Tensor:
    """What transformers computes for a prompt that is alone."""
    given = {"token_type_ids": torch.tensor([types])} if types else {}
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids]), **given).last_hidden_state[0].double()
    vector = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1]}[pooling]
    return vector / vector.norm() if normalise else vector
