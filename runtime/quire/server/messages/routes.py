"""The routes of /v1/messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from quire.outputs.reader import Reading
from quire.server.answers import JSON, follow
from quire.server.ask import ignored_header, run
from quire.server.bodies import documented, read_body
from quire.server.chat import conversation_ask, conversation_prompt, tools_of
from quire.server.errors import anthropic_form
from quire.server.frontend import Frontend
from quire.server.jobs import Job
from quire.server.messages.body import CountBody, MessagesBody
from quire.server.messages.writer import MessageWriter
from quire.server.streaming import event, openai_error
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """All of them."""
    routes = APIRouter()

    @routes.post("/v1/messages", openapi_extra=documented(MessagesBody))
    async def messages(request: Request) -> Response:
        body = await read_body(request, MessagesBody)
        model, ignored = frontend.check_model(body.model, GENERATE), body.ignored_fields()
        body.check()
        ask = await conversation_ask(frontend, body)
        writer = MessageWriter(model)

        async def whole(job: Job) -> JSON:
            async for _ in _told(job, ask.reading, writer):
                pass
            return writer.message

        async def events(job: Job) -> AsyncGenerator[bytes, None]:
            async for one in _told(job, ask.reading, writer):
                yield event(one, one["type"])

        def failure(exc: BaseException, request_id: str) -> Mapping[str, Any]:
            return anthropic_form(openai_error(exc, request_id), request_id)

        return await run(
            request,
            ask.opener(frontend, body),
            whole,
            events,
            streamed=bool(body.stream),
            headers={**ignored_header(ignored), "request-id": request.state.request_id},
            describe=failure,
        )

    @routes.post("/v1/messages/count_tokens", openapi_extra=documented(CountBody))
    async def count_tokens(request: Request) -> Response:
        body = await read_body(request, CountBody)
        frontend.check_model(body.model)
        ignored = body.ignored_fields()
        prompt = await conversation_prompt(frontend, body, await tools_of(body))
        return JSONResponse({"input_tokens": len(prompt.token_ids)}, headers=ignored_header(ignored))

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
