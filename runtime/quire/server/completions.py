"""/v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import Choice
from quire.outputs.parts import Message, Part, Text
from quire.request import TokenLogprobs
from quire.server import logprobs
from quire.server.answers import JSON
from quire.server.ask import Ask, head, respond
from quire.server.bodies import documented, read_body
from quire.server.frontend import Frontend
from quire.server.prompts import completion_prompts, fitted
from quire.server.protocol import CompletionBody
from quire.text.pieces import Pieces


@dataclass(frozen=True)
class CompletionShape:
    """Answers of /v1/completions."""

    head: JSON

    @property
    def chunk_head(self) -> JSON:
        return self.head

    def choice(self, index: int, message: Message, reason: str, logprobs: JSON | None) -> JSON:
        return {"index": index, "text": message.text, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, choice: Choice) -> JSON | None:
        return None

    def chunk(self, index: int, part: Part | None, reason: str | None, logprobs: JSON | None) -> JSON:
        text = part.text if isinstance(part, Text) else ""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        return logprobs.completion(entries, pieces, offset)

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        for choice, first in zip(answer["choices"], prompts, strict=True):
            if first.prompt_logprobs is not None:
                choice["prompt_logprobs"] = logprobs.prompt(first.prompt_logprobs, first.text.pieces)


def router(frontend: Frontend) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @routes.post("/v1/completions", openapi_extra=documented(CompletionBody))
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        model, ignored = frontend.check_model(body.model), body.ignored_fields()
        ask = Ask(*fitted(frontend, await completion_prompts(frontend, body), body))
        return await respond(
            request, frontend, body, ask, CompletionShape(head("cmpl", "text_completion", model)), ignored
        )

    return routes
