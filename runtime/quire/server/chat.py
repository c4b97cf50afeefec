"""/v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import Choice
from quire.outputs.parts import CallArguments, CallStart, Message, Part, Reasoning, Text
from quire.request import TokenLogprobs
from quire.server import logprobs
from quire.server.answers import JSON, TOOL_CALLS
from quire.server.ask import Ask, head, respond
from quire.server.bodies import documented, read_body
from quire.server.frontend import Frontend
from quire.server.prompts import ChatPrompt, encode_chat, fitted
from quire.server.protocol import ChatBody, Conversation, WithTools
from quire.server.tasks import GENERATE
from quire.server.tools import Tools, constraint, reading_of
from quire.text.pieces import Pieces


@dataclass(frozen=True)
class ChatShape:
    """Answers of /v1/chat/completions."""

    head: JSON

    @property
    def chunk_head(self) -> JSON:
        return {**self.head, "object": "chat.completion.chunk"}

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

    @routes.post("/v1/chat/completions", openapi_extra=documented(ChatBody))
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        model, ignored = frontend.check_model(body.model, GENERATE), body.ignored_fields()
        shape = ChatShape(head("chatcmpl", "chat.completion", model))
        ask = await conversation_ask(frontend, body)
        return await respond(request, frontend, body, ask, shape, ignored)

    return routes


async def tools_of(body: Conversation | WithTools) -> Tools:
    """The functions that may be called; beside the event loop, for they may be large. Raises RequestError."""
    if "tools" in body.model_fields_set:
        return await asyncio.to_thread(body.checked_tools)
    return body.checked_tools()


async def conversation_prompt(frontend: Frontend, body: Conversation, tools: Tools) -> ChatPrompt:
    """A conversation as a prompt; raises RequestError."""
    turns = body.messages if isinstance(body, ChatBody) else await asyncio.to_thread(body.turns)  # there may be many
    return await encode_chat(
        frontend,
        turns,
        add_generation_prompt=body.add_generation_prompt,
        tools=tools.offered,
        variables=body.template_variables,
        truncated=body.truncate_prompt_tokens is not None,
    )


async def conversation_ask(frontend: Frontend, body: Conversation) -> Ask:
    """What the engine is asked for a conversation, and how its answers are read; raises RequestError."""
    tools = await tools_of(body)
    prompt = await conversation_prompt(frontend, body, tools)
    reading = reading_of(frontend, tools, prompt.end)
    wanted, reading = constraint(frontend, tools, body.structured_output(), reading)
    prompts, params = fitted(frontend, [prompt.token_ids], body)
    params = [msgspec.structs.replace(one, structured_outputs=wanted) for one in params]
    return Ask(prompts, params, reading)
