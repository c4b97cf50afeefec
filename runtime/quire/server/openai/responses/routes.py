"""The routes of /v1/responses."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.errors import RequestError
from quire.outputs.reader import Reading
from quire.server.answers import logprobs
from quire.server.answers.shapes import JSON, Step, follow
from quire.server.answers.streaming import openai_error
from quire.server.ask import conversation_ask, new_id, run_told
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.flight.jobs import Job
from quire.server.openai.responses.body import ResponsesBody
from quire.server.openai.responses.writer import ResponseWriter
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @post(routes, "/v1/responses", ResponsesBody)
    async def responses(request: Request, body: ResponsesBody) -> Response:
        model = frontend.check_model(body.model, GENERATE)
        ask = await conversation_ask(frontend, body)
        writer = ResponseWriter(_head(body, model, ask.params[0].temperature, ask.params[0].top_p))

        def failure(exc: BaseException, request_id: str) -> Mapping[str, Any]:
            return writer.failure(openai_error(exc, request_id)["error"])

        return await run_told(
            request,
            ask.opener(frontend, body),
            lambda job: _told(job, ask.reading, writer),
            lambda: writer.response,
            streamed=bool(body.stream),
            describe=failure,
        )

    @routes.get("/v1/responses/{response_id}")
    @routes.delete("/v1/responses/{response_id}")
    @routes.get("/v1/responses/{response_id}/input_items")
    async def stored(response_id: str) -> Response:
        raise RequestError(
            f"there is no response {response_id[:80]!r}: responses are not stored here; keep the answer of POST /v1/responses",
            param="response_id",
            code="not_found",
            status=404,
        )

    return routes


async def _told(job: Job, reading: Reading, writer: ResponseWriter) -> AsyncGenerator[JSON, None]:
    """All events of a response; the first ones come with the first of the answer, so that a refusal is still an HTTP status."""
    begun, before, [choice] = False, 0, job.choices
    async for step in follow(job, reading):
        if not begun:
            begun = True
            for one in writer.begin():
                yield one
        after = choice.text.num_tokens
        for one in writer.step(step, after - before, _logprobs(step, job)):
            yield one
        before = after
        if step.reason is not None:
            for one in writer.end(step.reason, job.usage):
                yield one


def _logprobs(step: Step, job: Job) -> Sequence[JSON]:
    if not step.entries:
        return ()
    content: list[JSON] = logprobs.chat(step.entries, job.choices[0].text.pieces)["content"]
    return content


def _head(body: ResponsesBody, model: str, temperature: float, top_p: float) -> JSON:
    """What a response says of its request."""
    wanted = body.text.format if body.text is not None else None
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "instructions": body.instructions,
        "max_output_tokens": body.max_tokens_field[1],
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "reasoning": {"effort": body.effort, "summary": None},
        "store": False,
        "temperature": temperature,
        "text": {
            "format": {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_unset=True)
        },
        "tool_choice": _plain(body.tool_choice) or "auto",
        "tools": [_plain(tool) for tool in body.tools or ()],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": top_p,
        "truncation": "disabled",
    }


def _plain(value: Any) -> Any:
    return value.model_dump(exclude_unset=True) if hasattr(value, "model_dump") else value
