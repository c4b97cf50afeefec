"""Repetition, presence and frequency penalties, over only those tokens that a request has seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quire.engine.results import Fault
from quire.engine.sampling.pipeline import Row
from quire.request import SamplingParams


class Penalties:
    """Repetition penalty over prompt and answer; then frequency and presence penalties over the answer (as OpenAI
    defines them). Work and memory follow the distinct tokens of a request, not the vocabulary."""

    def wants(self, params: SamplingParams) -> bool:
        return params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        seen = [_seen(row) for row in rows]
        lengths = [len(one.ids) for one in seen]
        vocab, device = logits.shape[1], logits.device
        index = torch.from_numpy(np.concatenate([one.ids + row * vocab for row, one in zip(where, seen, strict=True)]))
        counts = torch.from_numpy(np.concatenate([one.counts for one in seen])).to(device)

        def each(values: list[float]) -> Tensor:
            return torch.from_numpy(np.repeat(np.array(values, dtype=np.float32), lengths)).to(device)

        flat, index = logits.view(-1), index.to(device)
        values = flat[index]
        repetition = each([row.params.repetition_penalty for row in rows])
        values = torch.where(values > 0, values / repetition, values * repetition)
        values -= each([row.params.frequency_penalty for row in rows]) * counts
        values -= each([row.params.presence_penalty for row in rows]) * (counts > 0)
        flat[index] = values
        return {}


class Seen:
    """Distinct tokens of a request and how often each occurs in its answer, kept up token by token.

    It follows from the tokens alone: a sequence that was preempted has the same tokens, and one with fewer is counted anew.
    """

    def __init__(self, *, with_prompt: bool) -> None:
        self._with_prompt = with_prompt
        self._place: dict[int, int] = {}
        self._ids = np.zeros(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.float32)
        self._followed = 0

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[D] token ids."""
        return self._ids[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[D] occurrences in the answer; 0 for tokens of the prompt only."""
        return self._counts[: len(self._place)]

    def follow(self, tokens: list[int], num_prompt: int) -> None:
        """Count what is new in the tokens of prompt and answer."""
        if len(tokens) < self._followed:
            self._place.clear()
            self._followed = 0
        if not self._followed:
            if self._with_prompt:
                for token in dict.fromkeys(tokens[:num_prompt]):
                    self._add(token, 0.0)
            self._followed = num_prompt
        for token in tokens[self._followed :]:
            self._add(token, 1.0)
        self._followed = len(tokens)

    def _add(self, token: int, count: float) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self._place)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[place] = token
            self._counts[place] = 0.0
        self._counts[place] += count


def _seen(row: Row) -> Seen:
    seen: Seen | None = row.scratch.get("seen")
    if seen is None:
        seen = row.scratch["seen"] = Seen(with_prompt=row.params.repetition_penalty != 1.0)
    seen.follow(row.tokens, row.num_prompt)
    return seen
