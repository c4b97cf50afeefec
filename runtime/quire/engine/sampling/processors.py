"""The logits processors that forbid or favour tokens by id, and the order of all of them.

Each works on the flattened logits: the ids of a request are an array made once, a step joins those of its rows with the rows'
offsets, and one gather or scatter serves the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.engine.results import Fault
from quire.engine.sampling.penalties import Penalties
from quire.engine.sampling.pipeline import LogitsProcessor, Row
from quire.request import SamplingParams

Ids = npt.NDArray[np.int64]
_FORBIDDEN = float("-inf")

T = TypeVar("T")


def default_processors() -> list[LogitsProcessor]:
    """In the order of application; custom ones and a grammar's mask come after."""
    return [AllowedTokens(), BadWords(), MinTokens(), LogitBias(), Penalties()]


def flat_index(logits: Tensor, where: Sequence[int], ids: Sequence[Ids]) -> Tensor:
    """Places in `logits.view(-1)` of token ids[i] of row where[i]."""
    vocab = logits.shape[1]
    return torch.from_numpy(np.concatenate([own + row * vocab for row, own in zip(where, ids, strict=True)])).to(
        logits.device
    )


def once(row: Row, key: str, make: Callable[[Row], T]) -> T:
    """What `make` gave for this request, made at its first step."""
    found: T | None = row.scratch.get(key)
    if found is None:
        found = row.scratch[key] = make(row)
    return found


def _array(ids: Sequence[int]) -> Ids:
    return np.fromiter(ids, dtype=np.int64, count=len(ids))


class AllowedTokens:
    """`allowed_token_ids`: everything else is forbidden."""

    def wants(self, params: SamplingParams) -> bool:
        return params.allowed_token_ids is not None

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        ids = [once(row, "allowed", _allowed) for row in rows]
        index, flat = flat_index(logits, where, ids), logits.view(-1)
        kept = flat[index]
        logits[torch.tensor(where, device=logits.device)] = _FORBIDDEN
        flat[index] = kept
        return {}


class BadWords:
    """`bad_words`, as token ids: the last token of a word is forbidden where the answer ends with the ones before it."""

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.bad_words_token_ids)

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        ids = [_array(list(once(row, "bad_words", _Words).completing(row))) for row in rows]
        logits.view(-1)[flat_index(logits, where, ids)] = _FORBIDDEN
        return {}


class _Words:
    """The words of one request, found by the token before their last, so that a step looks at few of them."""

    def __init__(self, row: Row) -> None:
        params = row.params
        self._always = {word[0] for word in params.bad_words_token_ids if len(word) == 1}
        self._after: dict[int, list[tuple[list[int], int]]] = {}
        for *beginning, last in params.bad_words_token_ids:
            if beginning:
                self._after.setdefault(beginning[-1], []).append((beginning, last))

    def completing(self, row: Row) -> set[int]:
        """Tokens that would complete a word now. Only what was generated counts."""
        found = set(self._always)
        if row.num_generated:
            for beginning, last in self._after.get(row.tokens[-1], ()):
                if len(beginning) <= row.num_generated and row.tokens[-len(beginning) :] == beginning:
                    found.add(last)
        return found


class MinTokens:
    """`min_tokens`: no token ends the answer before that many."""

    def wants(self, params: SamplingParams) -> bool:
        return params.min_tokens > 0

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        early = [i for i, row in enumerate(rows) if row.num_generated < row.params.min_tokens and row.stop_ids]
        if early:
            known = [once(rows[i], "stop_ids", _stop_ids) for i in early]
            ids = [own[own < logits.shape[1]] for own in known]  # a tokenizer may know more tokens than its model
            logits.view(-1)[flat_index(logits, [where[i] for i in early], ids)] = _FORBIDDEN
        return {}


class LogitBias:
    """`logit_bias`: a number is added to the logits of some tokens."""

    def wants(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        biases = [once(row, "bias", _biases) for row in rows]
        index = flat_index(logits, where, [ids for ids, _ in biases])
        logits.view(-1)[index] += torch.from_numpy(np.concatenate([added for _, added in biases])).to(logits.device)
        return {}


def _allowed(row: Row) -> Ids:
    return _array(row.params.allowed_token_ids or ())


def _stop_ids(row: Row) -> Ids:
    return _array(sorted(token for token in row.stop_ids if token >= 0))


def _biases(row: Row) -> tuple[Ids, npt.NDArray[np.float32]]:
    biases = row.params.logit_bias or {}
    return _array(list(biases)), np.fromiter(biases.values(), dtype=np.float32, count=len(biases))
