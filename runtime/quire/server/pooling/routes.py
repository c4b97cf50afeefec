"""/v1/embeddings, /v1/score, /v1/rerank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from msgspec import Raw
from msgspec.json import encode
from starlette.responses import Response

from quire.request import PoolingFacts, checked_priority, checked_salt
from quire.server.answers.shapes import JSON
from quire.server.answers.streaming import answer
from quire.server.ask import head, new_id
from quire.server.bodies.prompts import beside
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.pooling.body import EmbeddingBody, PoolingBody, RerankBody, ScoreBody
from quire.server.pooling.compare import Side, comparison
from quire.server.pooling.job import PoolJob, Prompt, pool_job
from quire.server.pooling.prompts import numbered, prompts_of
from quire.server.pooling.vectors import shortened, told
from quire.server.tasks import EMBED, SCORE


def router(frontend: Frontend) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @post(routes, "/v1/embeddings", EmbeddingBody)
    async def embeddings(request: Request, body: EmbeddingBody) -> Response:
        model = frontend.check_model(body.model, EMBED)
        facts = facts_of(frontend)
        size = body.checked_dimensions(facts.size)
        inputs = body.inputs()
        prompts = await prompts_of(
            frontend,
            inputs,
            body.kept(frontend.ready.max_model_len),
            names=numbered("input", len(inputs)),
            add_special_tokens=body.add_special_tokens is not False,
        )

        def shown(job: PoolJob, vectors: Sequence[bytes]) -> JSON:
            cut = (shortened(one, size, normalised=facts.normalised) for one in vectors)
            return {
                **head("embd", "list", model),
                "data": [
                    # encoded one by one: all at once would hold the interpreter's lock for as long
                    {"object": "embedding", "index": index, "embedding": Raw(encode(told(one, body.encoding_format)))}
                    for index, one in enumerate(cut)
                ],
                "usage": usage_of(job),
            }

        return await pooled(request, frontend, body, prompts, shown)

    @post(routes, "/v1/score", ScoreBody)
    async def score(request: Request, body: ScoreBody) -> Response:
        model = frontend.check_model(body.model, SCORE)
        first, second = (
            Side(texts, numbered(name, len(texts)))
            for name, texts in zip(("text_1", "text_2"), body.texts(), strict=True)
        )
        compared = await comparison(frontend, first, second, body.kept(frontend.ready.max_model_len))

        def shown(job: PoolJob, vectors: Sequence[bytes]) -> JSON:
            scores = compared.scores(vectors)
            return {
                **head("score", "list", model),
                "data": [{"index": index, "object": "score", "score": one} for index, one in enumerate(scores)],
                "usage": usage_of(job),
            }

        return await pooled(request, frontend, body, compared.prompts, shown)

    @post(routes, "/v1/rerank", RerankBody)
    async def rerank(request: Request, body: RerankBody) -> Response:
        model = frontend.check_model(body.model, SCORE)
        texts, count = body.texts(), body.count()
        compared = await comparison(
            frontend,
            Side([body.query], ["query"]),
            Side(texts, [f"documents.{place}" for place in range(len(texts))]),
            body.kept(frontend.ready.max_model_len),
        )

        def shown(job: PoolJob, vectors: Sequence[bytes]) -> JSON:
            scores = compared.scores(vectors)
            ranked = sorted(range(len(scores)), key=lambda place: -scores[place])[:count]
            results: list[JSON] = [{"index": place, "relevance_score": scores[place]} for place in ranked]
            if body.return_documents is not False:
                for one in results:
                    one["document"] = {"text": texts[one["index"]]}
            return {"id": new_id("rerank"), "model": model, "results": results, "usage": usage_of(job)}

        return await pooled(request, frontend, body, compared.prompts, shown)

    return routes


def facts_of(frontend: Frontend) -> PoolingFacts:
    """Of the vectors that the served model makes; `check_model` comes first."""
    facts = frontend.ready.pooling
    assert facts is not None
    return facts


def usage_of(job: PoolJob) -> dict[str, Any]:
    """The usage object."""
    tokens = job.usage.prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def pooled(
    request: Request,
    frontend: Frontend,
    body: PoolingBody,
    prompts: Sequence[Prompt],
    shown: Callable[[PoolJob, Sequence[bytes]], JSON],
) -> Response:
    """Run prompts and answer by what is made of their vectors; all is given up when the client leaves."""
    priority = checked_priority(body.priority, policy=frontend.config.scheduler_policy)
    salt = checked_salt(body.cache_salt)

    async def work() -> bytes:
        async with pool_job(frontend, prompts, priority=priority, cache_salt=salt) as job:
            request.state.job = job  # for the access log
            vectors = await job.vectors()
            return await beside(sum(map(len, vectors)), lambda: encode(shown(job, vectors)))

    return Response(await answer(request, work()), media_type="application/json")
