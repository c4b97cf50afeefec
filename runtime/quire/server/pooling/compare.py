"""How near texts are: by the angle between their vectors, or by a model that reads both (a cross-encoder)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul

from tokenizers import Encoding

from quire.server.bodies.prompts import beside, checked_text
from quire.server.flight.frontend import Frontend
from quire.server.pooling.job import Prompt
from quire.server.pooling.prompts import check_fits, check_length, prompts_of
from quire.server.pooling.vectors import numbers_of


@dataclass(frozen=True)
class Comparison:
    """Prompts to run, and what becomes of their vectors. pairs: places of two that are compared; None: each vector is a score."""

    prompts: list[Prompt]
    pairs: list[tuple[int, int]] | None

    def scores(self, vectors: Sequence[bytes]) -> list[float]:
        """One for each pair, in order: the cosine, from -1 to 1, or what the model says."""
        numbers = [numbers_of(vector) for vector in vectors]
        if self.pairs is None:
            return [score for (score,) in numbers]
        lengths = [math.sqrt(sum(map(mul, one, one))) or 1.0 for one in numbers]
        cosines = (
            sum(map(mul, numbers[first], numbers[second])) / (lengths[first] * lengths[second])
            for first, second in self.pairs
        )
        return [max(-1.0, min(1.0, one)) for one in cosines]  # rounding goes beyond


@dataclass(frozen=True)
class Side:
    """Texts that are compared, and the names of the fields they came from."""

    texts: Sequence[str]
    names: Sequence[str]


async def comparison(frontend: Frontend, first: Side, second: Side, keep: int | None) -> Comparison:
    """Each text of the first side with that of the second, or its only one with all of them. keep: tokens that are used of a prompt, which
    is a text or, where the model reads both, a pair; None: all. Raises RequestError."""
    facts = frontend.ready.pooling
    assert facts is not None
    lefts = [0] * len(second.texts) if len(first.texts) == 1 else list(range(len(first.texts)))
    if facts.task == "score":
        return Comparison(await _pairs(frontend, first, second, lefts, keep), None)
    names = [*first.names, *second.names]
    prompts = await prompts_of(frontend, [*first.texts, *second.texts], keep, names=names)
    return Comparison(prompts, [(left, len(first.texts) + right) for right, left in enumerate(lefts)])


async def _pairs(frontend: Frontend, first: Side, second: Side, lefts: Sequence[int], keep: int | None) -> list[Prompt]:
    """One prompt for each pair."""
    ones, others = [
        [
            await checked_text(frontend, text, name, truncated=keep is not None)
            for text, name in zip(side.texts, side.names, strict=True)
        ]
        for side in (first, second)
    ]
    tokenizer = frontend.tokenizer

    @lru_cache(maxsize=2)  # a query stays for all its documents
    def part(text: str) -> Encoding:
        return tokenizer.part(text if keep is None else tokenizer.beginning(text, keep))

    def run() -> Iterator[Prompt]:
        for left, other, name in zip(lefts, others, second.names, strict=True):
            one = part(ones[left])
            if keep is None:
                check_fits(frontend, one.ids, first.names[left])
            ids, kinds = tokenizer.pair(one, part(other), keep=keep)
            check_length(frontend, ids, name)
            yield Prompt.of(ids, kinds)

    return await beside(sum(map(len, ones)) + sum(map(len, others)), lambda: list(run()))
