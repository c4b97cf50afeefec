"""A SentencePiece-style BPE from the pieces and scores of a GGUF file (`tokenizer.ggml.model` = "llama").

SentencePiece merges the neighbours whose union has the best score; here each way to put a piece together becomes a merge
rule, ranked by the piece's score, which gives the same ids. Rare characters are spelled by byte pieces <0x00>..<0xFF>.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from quire.errors import ModelError

SPACE = "▁"


def build(path: Path, metadata: dict[str, Any], tokens: list[str]) -> tokenizers.Tokenizer:
    """The tokenizer without its special tokens; raises ModelError that names the file and what it lacks."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"the GGUF file {path} has no tokenizer.ggml.scores for its {len(tokens)} tokens")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    try:
        backend = tokenizers.Tokenizer(
            models.BPE(
                vocab=vocab,
                merges=_merges(tokens, scores, vocab),
                unk_token=tokens[unknown],
                fuse_unk=True,
                byte_fallback=True,
            )
        )
    except Exception as exc:  # the library raises plain Exception
        raise ModelError(f"the tokens of the GGUF file {path} make no tokenizer: {exc}") from exc
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    decode: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend(SPACE))
        decode.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(decode)
    return backend


def _merges(tokens: list[str], scores: list[float], vocab: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best union first."""
    rules: list[tuple[float, int, tuple[str, str]]] = []
    for token_id, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab and right in vocab:
                rules.append((-scores[token_id], token_id, (left, right)))
    rules.sort()
    return [pair for _, _, pair in rules]
