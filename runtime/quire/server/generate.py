"""/generate: a prompt and sampling parameters, for people and small scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import kept
from quire.outputs.parts import Message, Text
from quire.server.answers import JSON, follow, usage_of
from quire.server.ask import Ask, ignored_header, run
from quire.server.bodies import documented, read_body
from quire.server.frontend import Frontend
from quire.server.jobs import Job
from quire.server.prompts import completion_prompts, fitted
from quire.server.protocol import GenerateBody
from quire.server.streaming import DONE, event
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/generate", openapi_extra=documented(GenerateBody))
    async def generate(request: Request) -> Response:
        """Answers `{"text": [...], "finish_reason": [...], "usage": {...}}`; streamed, an event for every piece of an answer."""
        body = await read_body(request, GenerateBody)
        frontend.check_model(body.model, GENERATE)
        body.check()
        headers = ignored_header(body.ignored_fields())
        ask = Ask(*fitted(frontend, await completion_prompts(frontend, body), body))

        async def whole(job: Job) -> JSON:
            messages = [Message() for _ in job.choices]
            reasons = [""] * len(job.choices)
            async for step in follow(job, ask.reading):
                messages[step.index].add(step.parts)
                reasons[step.index] = step.reason or ""
            own = [choice.index for choice in kept(job.choices)]
            return {
                "text": [messages[index].text for index in own],
                "finish_reason": [reasons[index] for index in own],
                "usage": usage_of(job.usage),
            }

        async def events(job: Job) -> AsyncGenerator[bytes, None]:
            async for step in follow(job, ask.reading):
                text = "".join(part.text for part in step.parts if isinstance(part, Text))
                yield event({"index": step.index, "text": text, "finish_reason": step.reason})
            yield event({"usage": usage_of(job.usage)})
            yield DONE

        return await run(
            request, ask.opener(frontend, body), whole, events, streamed=bool(body.stream), headers=headers
        )

    return routes
