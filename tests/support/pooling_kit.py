"""What tests of models that make vectors share: a scripted engine whose vectors tell the tokens of their prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from live_server import Live
from quire.request import PoolingFacts, PoolRequest
from scripted_engine import ScriptedEngine

SIZE = 8
FACTS = PoolingFacts(task="embed", size=SIZE, normalised=True)
SCORES = PoolingFacts(task="score", size=1, normalised=False)


def unit(request: PoolRequest) -> list[float]:
    """A vector of the prompt's tokens, of length 1."""
    numbers = [0.2] * SIZE
    for place, token in enumerate(request.prompt_token_ids):
        numbers[(token + place) % SIZE] += 1.0 + token / 100
    length = math.sqrt(sum(number * number for number in numbers))
    return [number / length for number in numbers]


def vector_of(tokens: Sequence[int]) -> list[float]:
    return unit(PoolRequest(request_id="", prompt_token_ids=list(tokens), arrival_s=0.0))


def embedder(**options: Any) -> ScriptedEngine:
    return ScriptedEngine(pool=unit, facts=FACTS, **options)


async def post(live: Live, path: str, **body: Any) -> tuple[int, Any]:
    response = await live.http.post(path, json={"model": "tiny", **body})
    return response.status_code, response.json()


async def embed(live: Live, given: Any, **fields: Any) -> Any:
    status, answer = await post(live, "/v1/embeddings", input=given, **fields)
    assert status == 200, answer
    return answer


def near(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


def assert_vectors(answer: Any, prompts: Sequence[Sequence[int]]) -> None:
    """In the order of the prompts."""
    for one, prompt in zip(answer["data"], prompts, strict=True):
        assert near(one["embedding"], vector_of(prompt))
