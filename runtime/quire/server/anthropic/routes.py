"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from quire.outputs.reader import Reading
from quire.server.answers.shapes import JSON, follow
from quire.server.answers.streaming import openai_error
from quire.server.anthropic.body import CountBody, MessagesBody
from quire.server.anthropic.writer import MessageWriter
from quire.server.ask import conversation_ask, run_told
from quire.server.bodies.prompts import conversation_prompt, tools_of
from quire.server.bodies.reading import post
from quire.server.errors import anthropic_form
from quire.server.flight.frontend import Frontend
from quire.server.flight.jobs import Job
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @post(routes, "/v1/messages", MessagesBody)
    async def messages(request: Request, body: MessagesBody) -> Response:
        writer = MessageWriter(frontend.check_model(body.model, GENERATE))
        ask = await conversation_ask(frontend, body)

        def failure(exc: BaseException, request_id: str) -> Mapping[str, Any]:
            return anthropic_form(openai_error(exc, request_id), request_id)

        return await run_told(
            request,
            ask.opener(frontend, body),
            lambda job: _told(job, ask.reading, writer),
            lambda: writer.message,
            streamed=bool(body.stream),
            headers={"request-id": request.state.request_id},
            describe=failure,
        )

    @post(routes, "/v1/messages/count_tokens", CountBody)
    async def count_tokens(request: Request, body: CountBody) -> Response:
        frontend.check_model(body.model, GENERATE)
        prompt = await conversation_prompt(frontend, body, await tools_of(body))
        return JSONResponse({"input_tokens": len(prompt.token_ids)})

    return routes


async def _told(job: Job, reading: Reading, writer: MessageWriter) -> AsyncGenerator[JSON, None]:
    """All events of a message; the first one comes with the first of the answer, so that a refusal is still an HTTP status."""
    begun, [choice] = False, job.choices
    async for step in follow(job, reading):
        if not begun:
            begun = True
            for one in writer.begin(job.usage):
                yield one
        for one in writer.step(step):
            yield one
        if step.reason is not None:
            found = choice.stop_reason if isinstance(choice.stop_reason, str) else None
            for one in writer.end(step.reason, found, job.usage):
                yield one
