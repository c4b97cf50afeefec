"""/generate: a prompt and sampling parameters, for people and small scripts."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import kept
from quire.outputs.parts import Message, Text
from quire.server.answers.shapes import JSON, follow, usage_of
from quire.server.answers.streaming import DONE, event
from quire.server.ask import completion_ask, run
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.flight.jobs import Job
from quire.server.service.bodies import GenerateBody
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @post(routes, "/generate", GenerateBody)
    async def generate(request: Request, body: GenerateBody) -> Response:
        """Answers `{"text": [...], "finish_reason": [...], "usage": {...}}`; streamed, an event for every piece of an answer."""
        frontend.check_model(body.model, GENERATE)
        ask, _ = await completion_ask(frontend, body)

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

        return await run(request, ask.opener(frontend, body), whole, events, streamed=bool(body.stream))

    return routes
