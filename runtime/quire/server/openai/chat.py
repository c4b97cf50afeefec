"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import Choice
from quire.outputs.parts import CallArguments, CallStart, Message, Part, Reasoning, Text
from quire.request import TokenLogprobs
from quire.server.answers import logprobs
from quire.server.answers.shapes import JSON, TOOL_CALLS
from quire.server.ask import conversation_ask, head, respond
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.openai.bodies import ChatBody
from quire.server.tasks import GENERATE
from quire.text.pieces import Pieces


@dataclass(frozen=True)
class ChatShape:
    """Answers of /v1/chat/completions."""

    head: JSON

    @property
    def chunk_head(self) -> JSON:
        return {**self.head, "object": "chat.completion.chunk"}

    @property
    def tells_end(self) -> bool:
        return False

    def choice(self, index: int, message: Message, reason: str, logprobs: JSON | None) -> JSON:
        said: JSON = {"role": "assistant", "content": message.text, "refusal": None}
        if message.reasoning:
            said["reasoning_content"] = message.reasoning
        if message.calls:
            said["content"] = message.text or None
            said[TOOL_CALLS] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in message.calls
            ]
        return {"index": index, "message": said, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, choice: Choice) -> JSON | None:
        return self._chunk(choice.index, {"role": "assistant", "content": ""}, None, None)

    def chunk(self, index: int, part: Part | None, reason: str | None, logprobs: JSON | None) -> JSON:
        delta: JSON = {}
        match part:
            case Text():
                delta = {"content": part.text}
            case Reasoning():
                delta = {"reasoning_content": part.text}
            case CallStart():
                function = {"name": part.name, "arguments": ""}
                delta = {TOOL_CALLS: [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
            case CallArguments():
                delta = {TOOL_CALLS: [{"index": part.index, "function": {"arguments": part.text}}]}
            case None if logprobs is not None:
                delta = {"content": ""}
        return self._chunk(index, delta, reason, logprobs)

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        return logprobs.chat(entries, pieces)

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        if prompts[0].prompt_logprobs is not None:
            answer["prompt_logprobs"] = logprobs.prompt(prompts[0].prompt_logprobs, prompts[0].text.pieces)

    def _chunk(self, index: int, delta: JSON, reason: str | None, logprobs: JSON | None) -> JSON:
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def router(frontend: Frontend) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @post(routes, "/v1/chat/completions", ChatBody)
    async def chat_completions(request: Request, body: ChatBody) -> Response:
        shape = ChatShape(head("chatcmpl", "chat.completion", frontend.check_model(body.model, GENERATE)))
        ask = await conversation_ask(frontend, body)
        return await respond(request, frontend, body, ask, shape, include_usage=body.include_usage)

    return routes
