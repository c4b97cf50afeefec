"""/v1/completions and /v1/chat/completions: read the body, check, run, answer."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from quire.outputs.choice import Choice
from quire.request import TokenLogprobs, checked_priority, checked_salt
from quire.server import logprobs
from quire.server.answers import JSON, Shape, collect, stream
from quire.server.bodies import documented, read_body
from quire.server.frontend import Frontend
from quire.server.jobs import Job
from quire.server.prompts import completion_prompts, encode_chat, fitted
from quire.server.protocol import ChatBody, CompletionBody, Sampling
from quire.server.streaming import EventStream, answer
from quire.text.pieces import Pieces

IGNORED_HEADER = "x-quire-ignored-fields"

OpenJob = Callable[[], AbstractAsyncContextManager[Job]]


@dataclass(frozen=True)
class CompletionShape:
    """Answers of /v1/completions."""

    head: JSON

    @property
    def chunk_head(self) -> JSON:
        return self.head

    def choice(self, index: int, text: str, reason: str, logprobs: JSON | None) -> JSON:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, index: int) -> JSON | None:
        return None

    def chunk(self, index: int, text: str, reason: str | None, logprobs: JSON | None) -> JSON:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        return logprobs.completion(entries, pieces, offset)

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        for choice, first in zip(answer["choices"], prompts, strict=True):
            choice["prompt_logprobs"] = logprobs.prompt(first.prompt_logprobs or (), first.text.pieces)


@dataclass(frozen=True)
class ChatShape:
    """Answers of /v1/chat/completions."""

    head: JSON

    @property
    def chunk_head(self) -> JSON:
        return {**self.head, "object": "chat.completion.chunk"}

    def choice(self, index: int, text: str, reason: str, logprobs: JSON | None) -> JSON:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, index: int) -> JSON | None:
        return self._delta(index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, text: str, reason: str | None, logprobs: JSON | None) -> JSON:
        return self._delta(index, {"content": text} if text or logprobs else {}, reason, logprobs)

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        return logprobs.chat(entries, pieces)

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        answer["prompt_logprobs"] = logprobs.prompt(prompts[0].prompt_logprobs or (), prompts[0].text.pieces)

    def _delta(self, index: int, delta: JSON, reason: str | None, logprobs: JSON | None) -> JSON:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def router(frontend: Frontend) -> APIRouter:
    """The two routes."""
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        model, ignored = frontend.check_model(body.model), body.ignored_fields()
        prompts = await completion_prompts(frontend, body)
        shape = CompletionShape(_head("cmpl", "text_completion", model))
        return await _respond(request, frontend, body, prompts, shape, ignored)

    @routes.post("/v1/chat/completions", openapi_extra=documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        model, ignored = frontend.check_model(body.model), body.ignored_fields()
        prompt = await encode_chat(
            frontend,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            variables=body.chat_template_kwargs,
            truncated=body.truncate_prompt_tokens is not None,
        )
        shape = ChatShape(_head("chatcmpl", "chat.completion", model))
        return await _respond(request, frontend, body, [prompt], shape, ignored)

    return routes


async def _respond(
    request: Request,
    frontend: Frontend,
    body: Sampling,
    prompts: Sequence[list[int]],
    shape: Shape,
    ignored: Sequence[str],
) -> Response:
    include_usage = body.include_usage
    prompts, params = fitted(frontend, prompts, body)
    priority = checked_priority(body.priority, policy=frontend.config.scheduler_policy)
    open_job = partial(frontend.job, prompts, params, priority=priority, cache_salt=checked_salt(body.cache_salt))
    headers = ignored_header(ignored)
    if body.stream:
        events = _events(request, open_job, shape, include_usage)
        return EventStream(events, request_id=request.state.request_id, headers=headers)
    content = await answer(request, _whole(request, open_job, shape))
    return JSONResponse(content, headers=headers)


async def _whole(request: Request, open_job: OpenJob, shape: Shape) -> JSON:
    async with open_job() as job:
        request.state.job = job  # for the access log
        return await collect(job, shape)


async def _events(
    request: Request, open_job: OpenJob, shape: Shape, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    async with open_job() as job:
        request.state.job = job
        async for data in stream(job, shape, include_usage=include_usage):
            yield data


def _head(prefix: str, kind: str, model: str) -> dict[str, Any]:
    return {"id": f"{prefix}-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """The header that names fields of the body which have no effect; names are cut to what a header may hold."""
    shown = [re.sub(r"[^A-Za-z0-9_.-]", "?", name)[:64] for name in names[:16]]
    return {IGNORED_HEADER: ", ".join(shown)} if shown else {}
