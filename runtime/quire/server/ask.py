"""From a checked body to an answer: what all endpoints that generate do alike."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec
from fastapi import Request
from starlette.responses import Response

from quire.outputs.reader import Reading
from quire.request import SamplingParams, checked_priority, checked_salt
from quire.server.answers.shapes import JSON, Shape, collect, stream
from quire.server.answers.streaming import Describe, EventStream, answer, event, openai_error
from quire.server.bodies.chat import Chat
from quire.server.bodies.prompts import completion_prompts, conversation_prompt, fitted, tools_of
from quire.server.bodies.sampling import Prompted, Sampling
from quire.server.bodies.tools import constraint, reading_of
from quire.server.flight.frontend import Frontend
from quire.server.flight.jobs import Job

OpenJob = Callable[[], AbstractAsyncContextManager[Job]]
Whole = Callable[[Job], Awaitable[JSON]]
Events = Callable[[Job], AsyncGenerator[bytes, None]]
Told = Callable[[Job], AsyncGenerator[JSON, None]]
"""What happens, as objects whose `type` says what."""


@dataclass(frozen=True)
class Ask:
    """What the engine is asked: prompts as far as they are wanted, resolved parameters for each; and how the answers are read."""

    prompts: list[list[int]]
    params: list[SamplingParams]
    reading: Reading = field(default_factory=Reading)

    def opener(self, frontend: Frontend, body: Sampling) -> OpenJob:
        """What runs it. Raises RequestError that names a field of the body."""
        return partial(
            frontend.job,
            self.prompts,
            self.params,
            priority=checked_priority(body.priority, policy=frontend.config.scheduler_policy),
            cache_salt=checked_salt(body.cache_salt),
            visible=self.reading.specials,
        )


async def completion_ask(frontend: Frontend, body: Prompted) -> tuple[Ask, list[list[int]]]:
    """What the engine is asked for raw prompts, and the prompts as they came; raises RequestError."""
    prompts = await completion_prompts(frontend, body)

    def ask() -> Ask:
        return Ask(*fitted(frontend, prompts, body))

    return await asyncio.to_thread(ask) if body.takes_long else ask(), prompts


async def conversation_ask(frontend: Frontend, body: Chat) -> Ask:
    """What the engine is asked for a conversation, and how its answers are read; raises RequestError."""
    tools = await tools_of(body)
    prompt = await conversation_prompt(frontend, body, tools)

    def ask() -> Ask:
        wanted, reading = constraint(frontend, tools, body.structured_output(), reading_of(frontend, tools, prompt.end))
        prompts, params = fitted(frontend, [prompt.token_ids], body)
        params = [msgspec.structs.replace(one, structured_outputs=wanted) for one in params]
        return Ask(prompts, params, reading)

    return await asyncio.to_thread(ask) if body.takes_long or tools.offered else ask()


async def respond(
    request: Request, frontend: Frontend, body: Sampling, ask: Ask, shape: Shape, *, include_usage: bool
) -> Response:
    """Answer in OpenAI's shapes of completions. include_usage: at the end of a stream."""
    return await run(
        request,
        ask.opener(frontend, body),
        lambda job: collect(job, shape, ask.reading),
        lambda job: stream(job, shape, ask.reading, include_usage=include_usage),
        streamed=bool(body.stream),
    )


async def run_told(
    request: Request,
    open_job: OpenJob,
    told: Told,
    content: Callable[[], JSON],
    *,
    streamed: bool,
    describe: Describe,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Answer in the way of endpoints whose events add up to the answer: as events named by their type, or with the content there is when
    all has been told. Others: see `run`."""

    async def whole(job: Job) -> JSON:
        async for _ in told(job):
            pass
        return content()

    async def events(job: Job) -> AsyncGenerator[bytes, None]:
        async for one in told(job):
            yield event(one, one["type"])

    return await run(request, open_job, whole, events, streamed=streamed, headers=headers, describe=describe)


async def run(
    request: Request,
    open_job: OpenJob,
    whole: Whole,
    events: Events,
    *,
    streamed: bool,
    headers: Mapping[str, str] | None = None,
    describe: Describe = openai_error,
) -> Response:
    """Run a job and answer, whole or as a stream. describe: how an error looks in the stream."""
    if streamed:
        return EventStream(
            _events(request, open_job, events),
            request_id=request.state.request_id,
            headers=headers or {},
            describe=describe,
        )
    content = await answer(request, _whole(request, open_job, whole))
    # as in a stream: what JSON has no number for is null, where json.dumps would raise
    return Response(msgspec.json.encode(content), headers=dict(headers or {}), media_type="application/json")


async def _whole(request: Request, open_job: OpenJob, whole: Whole) -> JSON:
    async with open_job() as job:
        request.state.job = job  # for the access log
        return await whole(job)


async def _events(request: Request, open_job: OpenJob, events: Events) -> AsyncGenerator[bytes, None]:
    async with open_job() as job:
        request.state.job = job
        async with aclosing(events(job)) as told:
            async for data in told:
                yield data


def head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    """What every answer of the OpenAI API begins with."""
    return {"id": new_id(prefix), "object": kind, "created": int(time.time()), "model": model}


def new_id(prefix: str) -> str:
    """An id that nothing else has."""
    return f"{prefix}-{uuid.uuid4().hex}"
