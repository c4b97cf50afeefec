"""From bodies to prompts the engine can take: encoding, bounds, room.

Everything the engine could stumble over is refused here with the field's name; long texts are encoded in a thread so
that health and running streams never wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from quire.errors import RequestError
from quire.request import SamplingParams
from quire.server.bodies.conversation import ChatMessage, Conversation, WithTools
from quire.server.bodies.sampling import MAX_PROMPTS, Prompted, Sampling
from quire.server.bodies.tools import Tools
from quire.server.flight.frontend import Frontend
from quire.text import IN_THREAD_CHARS, Tokenizer
from quire.text.messages import PARTS_JOINT, plain_message
from quire.text.tool_use import adapted, habits_of

END_CHARS = 64

T = TypeVar("T")


async def completion_prompts(frontend: Frontend, body: Prompted) -> list[list[int]]:
    """Token ids of every prompt of a completion; raises RequestError."""
    match body.prompt:
        case str(text):
            return await encode(frontend, [text], truncated=body.truncate_prompt_tokens)
        case []:
            raise RequestError("prompt must not be empty", param="prompt", code="invalid_value")
        case [int(), *_]:
            return [await given_ids(frontend, body.prompt)]  # type: ignore[arg-type]
    if len(body.prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt must be at most {MAX_PROMPTS} prompts, got {len(body.prompt)}",
            param="prompt",
            code="invalid_value",
        )
    if isinstance(body.prompt[0], str):
        return await encode(frontend, body.prompt, truncated=body.truncate_prompt_tokens)
    return [await given_ids(frontend, prompt) for prompt in body.prompt]  # type: ignore[arg-type]


async def encode(
    frontend: Frontend, texts: Sequence[str], *, add_special_tokens: bool = True, truncated: int | None = None
) -> list[list[int]]:
    """Ids of raw prompts. truncated: how many tokens at the end of each are used, where it will be cut (-1: what the model takes), so that
    its length is no reason to refuse it."""
    tokenizer, keep = frontend.tokenizer, _used(frontend, truncated)
    checked = [await checked_text(frontend, text, "prompt", truncated=keep is not None) for text in texts]

    def run() -> list[list[int]]:
        ends = checked if keep is None else [tokenizer.end(text, keep) for text in checked]
        return [tokenizer.encode(end, add_special_tokens=add_special_tokens) for end in ends]

    return await beside(sum(map(len, checked)), run)


def _used(frontend: Frontend, truncated: int | None) -> int | None:
    """How many tokens of a prompt that will be cut are used at most; None where the cut leaves too many for the model anyhow."""
    limit = frontend.ready.max_model_len
    return limit if truncated == -1 else truncated if truncated is not None and 1 <= truncated <= limit else None


async def checked_text(frontend: Frontend, text: str, param: str, *, truncated: bool = False) -> str:
    """A text that may be encoded, as the filters leave it. truncated: only a part of it will be. Raises RequestError."""
    if not truncated:
        _check_size(frontend, frontend.tokenizer, len(text), param)
    return await frontend.filters.prompt(text, param)


async def beside(num_chars: int, work: Callable[[], T]) -> T:
    """What work on so many characters, tokens or bytes gives; where they are many it is done in a thread."""
    return work() if num_chars < IN_THREAD_CHARS else await asyncio.to_thread(work)


@dataclass(frozen=True)
class ChatPrompt:
    """A rendered conversation. end: its last characters."""

    token_ids: list[int]
    end: str


async def encode_chat(
    frontend: Frontend,
    messages: Sequence[ChatMessage],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] | None = None,
    truncated: int | None = None,
) -> ChatPrompt:
    """A conversation as a prompt. truncated: see `encode`."""
    keep = _used(frontend, truncated)
    tokenizer, limit = frontend.tokenizer, frontend.ready.max_model_len
    if len(messages) > limit:  # no template writes a message without a token
        raise too_long(f"there are {len(messages)} messages", limit, "messages")

    if filters := frontend.filters:
        given = await asyncio.to_thread(lambda: [_joined(message.model_dump()) for message in messages])
        told = await filters.within(given, "messages")
        messages = await asyncio.to_thread(lambda: [ChatMessage.model_validate(message) for message in told])
        tools = await filters.within(list(tools), "tools")
        variables = await filters.within(dict(variables or {}), "chat_template_kwargs")

    def run() -> ChatPrompt:
        plain = [_plain(message, i, tokenizer) for i, message in enumerate(messages)]
        if keep is None:
            _check_size(frontend, tokenizer, sum(map(_size, plain)), "messages")
        offered: Sequence[Mapping[str, Any]] | None = None
        if tools or any(message.get("tool_calls") or message["role"] == "tool" for message in plain):
            plain, offered = adapted(habits_of(tokenizer.chat), plain, tools)
        text, ids = tokenizer.chat_prompt(
            plain,
            keep=keep,
            tools=offered,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            variables=variables,
        )
        return ChatPrompt(ids, text[-END_CHARS:])

    short = (
        not tools
        and len(messages) < 100
        and _plain_values(variables or {})
        and sum(_roughly(message) for message in messages) < IN_THREAD_CHARS
    )
    return run() if short else await asyncio.to_thread(run)


async def tools_of(body: Conversation | WithTools) -> Tools:
    """The functions that may be called; beside the event loop, for they may be large. Raises RequestError."""
    if "tools" in body.model_fields_set:
        return await asyncio.to_thread(body.checked_tools)
    return body.checked_tools()


async def conversation_prompt(frontend: Frontend, body: Conversation, tools: Tools) -> ChatPrompt:
    """A conversation as a prompt; raises RequestError."""
    turns = await asyncio.to_thread(body.turns) if body.MANY_TURNS else body.turns()
    return await encode_chat(
        frontend,
        turns,
        add_generation_prompt=body.generation_prompt,
        continue_final_message=body.continues,
        tools=tools.offered,
        variables=body.template_variables,
        truncated=body.truncated,
    )


def fitted(
    frontend: Frontend, prompts: Sequence[list[int]], body: Sampling
) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts as far as they are wanted, and resolved sampling parameters for each; raises RequestError where something
    does not fit.

    Without a limit on tokens an answer may use what its prompt leaves of the model's length, or as much of it as the model's
    own default says.
    """
    ready, defaults, params = frontend.ready, frontend.defaults, body.sampling(frontend.defaults.values)
    params.check_ids(ready.vocab_size)
    begin = frontend.tokenizer.begin_id
    kept = [params.truncated(prompt, ready.max_model_len, begin=begin) for prompt in prompts]
    where = body.PROMPT_FIELD
    rooms = [_room(ready.max_model_len, len(prompt), body, where) for prompt in kept]
    most = ready.max_model_len if defaults.max_tokens is None else max(defaults.max_tokens, params.min_tokens)
    return kept, [frontend.tokenizer.resolve(params, room=min(room, most)) for room in rooms]


def _room(limit: int, length: int, body: Sampling, where: str) -> int:
    """Tokens that an answer may have behind a prompt of `length`. A prompt that is only scored may fill the whole window."""
    name, max_tokens = body.max_tokens_field
    if body.scores and length == limit:
        return 1
    if length == 0:
        raise RequestError(f"{where} must not be empty", param=where, code="invalid_value")
    if length > limit:
        raise too_long(f"the prompt has {length} tokens", limit, where)
    if length == limit:
        raise too_long(f"the prompt has {length} tokens, which leaves no room for an answer", limit, where)
    if max_tokens is not None and length + max_tokens > limit:
        asked = f"{length + max_tokens} tokens were requested ({length} in the prompt, {max_tokens} in {name})"
        raise too_long(asked, limit, name)
    return limit - length


def too_long(what: str, limit: int, param: str) -> RequestError:
    """What is said of a request that has more tokens than the model."""
    return RequestError(
        f"this model's maximum context length is {limit} tokens, but {what}",
        param=param,
        code="context_length_exceeded",
    )


def _check_size(frontend: Frontend, tokenizer: Tokenizer, chars: int, param: str) -> None:
    """Refuse what cannot fit before it is encoded: no token covers more than `longest` bytes."""
    limit, longest = frontend.ready.max_model_len, tokenizer.pieces.longest
    if chars > limit * longest:
        raise too_long(f"{param} has {chars} characters, which are at least {chars // longest} tokens", limit, param)


def checked_ids(frontend: Frontend, token_ids: list[int], param: str) -> list[int]:
    """Token ids that came from outside: the bound is the model's output size."""
    if not token_ids:
        raise RequestError(f"{param} must not be empty", param=param, code="invalid_value")
    bound = frontend.ready.vocab_size
    if min(token_ids) < 0 or max(token_ids) >= bound:
        wrong = next(i for i in token_ids if not 0 <= i < bound)
        raise RequestError(
            f"token ids in {param} must be between 0 and {bound - 1}, got {wrong}", param=param, code="invalid_value"
        )
    return token_ids


async def given_ids(frontend: Frontend, token_ids: list[int], param: str = "prompt") -> list[int]:
    """A prompt of token ids: as it came, unless a filter changes its text."""
    checked = checked_ids(frontend, token_ids, param)
    if not frontend.filters:
        return checked
    tokenizer = frontend.tokenizer
    text = await beside(len(checked), lambda: tokenizer.decode(checked, skip_special_tokens=False))
    filtered = await frontend.filters.prompt(text, param)
    return (
        checked
        if filtered == text
        else await beside(len(filtered), lambda: tokenizer.encode(filtered, add_special_tokens=False))
    )


def _size(message: Mapping[str, Any]) -> int:
    """Characters that templates write."""
    return len(message["content"]) + sum(len(call["function"]["arguments"]) for call in message.get("tool_calls", ()))


def _roughly(message: ChatMessage) -> int:
    """Characters of a message's content, or a lot where that is not seen at once."""
    if message.tool_calls or isinstance(message.content, list):
        return IN_THREAD_CHARS
    return len(message.content or "")


def _plain_values(variables: Mapping[str, Any]) -> bool:
    """Whether there is nothing in them to walk through."""
    return not any(isinstance(value, list | dict) for value in variables.values())


def _joined(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose text parts are the one text that they are for the model, so that filters see it as a whole."""
    content = message["content"]
    if not isinstance(content, list) or any(part["type"] != "text" or part["text"] is None for part in content):
        return message
    return {**message, "content": PARTS_JOINT.join(part["text"] for part in content)}


def _plain(message: ChatMessage, index: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """A message as templates expect it: fields that are null are not there."""
    fields = {key: value for key, value in message.model_dump().items() if value is not None}
    return plain_message(fields, index, knows_developer="developer" in tokenizer.chat.source())
