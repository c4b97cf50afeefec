"""A tokenizer from the metadata of a GGUF file.

A GGUF carries tokens, token types, and merges with the name of the pre-tokenizer (`tokenizer.ggml.pre`) or scores
(`gguf_sentencepiece`); this module puts the tokenizer together so that its ids equal those of the model's own tokenizer.json.
An unknown pre-tokenizer is refused: a wrong split gives ids that are almost right, which is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from quire.errors import ModelError
from quire.models.gguf_file import GGUFFile
from quire.text import gguf_sentencepiece
from quire.text.vocabulary import Vocabulary

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}" + _CASED_TAIL
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}" + _CASED_TAIL
)

_GPT2_FAMILY = ("default", "gpt-2", "mpt", "olmo", "jais", "phi-2", "trillion", "exaone4", "modern-bert")
_DIGITS_FAMILY = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b")
_SPLITS = (
    dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "dbrx", "smaug-bpe"), _LLAMA3)
    | dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN2)
    | {"tekken": _TEKKEN}
    | dict.fromkeys(("gpt-4o", "llama4"), _GPT4O)
)
_WHOLE_WORDS = {"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "lfm2", "tekken"}
"""Vocabularies made from tiktoken: a word that is a token is taken as it is, without looking at merges."""

_CONTROL, _USER_DEFINED = 3, 4

_END_NAMES = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
)
"""Control tokens that end an answer whatever the header says: converters keep one end id where models have several."""


def pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer | None:
    """The splitting of text into words for one `tokenizer.ggml.pre`; None where it is unknown."""
    if name in _SPLITS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    if name in _DIGITS_FAMILY:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    if name in _GPT2_FAMILY:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return None


def from_gguf(path: Path) -> Vocabulary:
    """Read the vocabulary of a GGUF file; raises ModelError that names the file and what it lacks."""
    metadata = GGUFFile(path).metadata
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise ModelError(
            f"the GGUF file {path} has a tokenizer of kind {kind!r}; byte-level BPE ('gpt2') and SentencePiece BPE ('llama') "
            "are read from GGUF: give the model's own tokenizer with --tokenizer FOLDER"
        )
    tokens: list[str] = _needed(path, metadata, "tokenizer.ggml.tokens")
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    backend = _KINDS[kind](path, metadata, tokens)
    adds_bos = kind == "llama" or metadata.get("tokenizer.ggml.pre") in _WHOLE_WORDS
    backend.add_special_tokens(
        [
            AddedToken(t, normalized=False, special=True)
            for t, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    backend.add_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
    )

    special_ids = frozenset(i for i, kind in enumerate(types) if kind == _CONTROL)
    ends = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")]
    ends += [i for i in sorted(special_ids) if tokens[i] in _END_NAMES]
    return Vocabulary(
        backend=backend,
        name=path.name,
        special_ids=special_ids,
        eos_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        pad_id=metadata.get("tokenizer.ggml.padding_token_id"),
        unk_id=metadata.get("tokenizer.ggml.unknown_token_id"),
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", adds_bos),
        templates=_templates(metadata),
        template_tokens=_template_tokens(metadata, tokens),
    )


def _byte_level(path: Path, metadata: dict[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "default")
    splitter = pre_tokenizer(pre)
    if splitter is None:
        raise ModelError(
            f"the GGUF file {path} wants the pre-tokenizer {pre!r}, which is not known; "
            "give the model's own tokenizer with --tokenizer FOLDER"
        )
    merges: list[str] = _needed(path, metadata, "tokenizer.ggml.merges")
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        cut = merge.find(" ", 1)
        pairs.append((merge[:cut], merge[cut + 1 :]))
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _WHOLE_WORDS))
    except Exception as exc:  # the library raises plain Exception
        raise ModelError(f"the merges of the GGUF file {path} do not fit its tokens: {exc}") from exc
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    return backend


_KINDS: dict[object, Callable[[Path, dict[str, Any], list[str]], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": gguf_sentencepiece.build,
}
"""By `tokenizer.ggml.model`."""


def _needed(path: Path, metadata: dict[str, Any], key: str) -> Any:
    try:
        return metadata[key]
    except KeyError:
        raise ModelError(f"the GGUF file {path} has no {key}: it carries no usable tokenizer") from None


def _templates(metadata: dict[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    named = {key[len(prefix) + 1 :]: value for key, value in metadata.items() if key.startswith(prefix + ".")}
    return named | ({"default": metadata[prefix]} if prefix in metadata else {})


def _template_tokens(metadata: dict[str, Any], tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in keys.items()}
    return {name: tokens[i] for name, i in ids.items() if i is not None and 0 <= i < len(tokens)}
