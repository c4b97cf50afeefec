"""Tools in a conversation, as the chat template of a model wants them.

Templates differ: arguments as objects or as text, calls without content or with an empty one, GLM-4's roles of its own; many know no tools at
all. What a template takes is found out once, by rendering a small conversation in each of these ways and looking whether everything is in the
text (`habits_of`). What it does not take is written into the messages as Hermes' models were taught it (`adapted`), so that tools work with
every model that can follow instructions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from quire.errors import RequestError
from quire.text.chat import ChatTemplate

Message = dict[str, Any]
Way = Callable[[Sequence[Message]], list[Message]]


@dataclass(frozen=True)
class Habits:
    """What a chat template takes. tools: it writes the functions of a request. system: it takes system messages. history: how messages
    with calls and results become ones that it writes."""

    tools: bool
    system: bool
    history: Way


@lru_cache(8)
def habits_of(chat: ChatTemplate) -> Habits:
    """Look at a template. Costs a few renderings of four short messages."""
    tools = "probe_tool" in _rendered(chat, [_USER], [_PROBE_TOOL])
    wanted = ("probe_call", "probe_key", "probe_value", "probe_result")
    ways = [_as_objects, _as_texts, _objects_alone, _texts_alone]
    if "metadata" in chat.source():
        ways.append(_observations)
    for way in ways:
        for offered in (None, [_PROBE_TOOL]):
            text = _rendered(chat, way(_PROBE_HISTORY), offered)
            if all(word in text for word in wanted) and '\\"probe_key' not in text:
                return Habits(tools, _takes_system(chat), way)
    return Habits(tools, _takes_system(chat), in_words)


def adapted(
    habits: Habits, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
    """Messages and tools to render. messages: their content is text, arguments of calls are JSON texts."""
    plain = [dict(message) for message in messages]
    if any(message.get("tool_calls") or message["role"] == "tool" for message in plain):
        plain = in_words(plain) if tools and not habits.tools else habits.history(plain)
    if not tools or habits.tools:
        return plain, tools or None
    return _introduced(plain, tools, system=habits.system), None


# --- ways to write calls and results -------------------------------------------------------------------------------


def _as_objects(messages: Sequence[Message]) -> list[Message]:
    return [_with_calls(message, _object) for message in messages]


def _as_texts(messages: Sequence[Message]) -> list[Message]:
    return [_with_calls(message, str) for message in messages]


def _objects_alone(messages: Sequence[Message]) -> list[Message]:
    return [_without_content(message) for message in _as_objects(messages)]


def _texts_alone(messages: Sequence[Message]) -> list[Message]:
    return [_without_content(message) for message in _as_texts(messages)]


def _observations(messages: Sequence[Message]) -> list[Message]:
    """GLM-4: each call is a message whose metadata is the function's name, results are of the role observation."""
    found: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool":
            message = {**message, "role": "observation"}
        if message["content"] or not calls:
            found.append({key: value for key, value in message.items() if key != "tool_calls"})
        for call in calls:
            function = call["function"]
            found.append({"role": "assistant", "metadata": function["name"], "content": function["arguments"]})
    return found


def in_words(messages: Sequence[Message]) -> list[Message]:
    """Calls are text of the assistant, results are text of the user, those that follow each other in one message."""
    found: list[Message] = []
    texts: list[list[str]] = []
    answered = False  # the last one is of the user, with results in it
    for message in messages:
        role, words = message["role"], message["content"]
        if calls := message.get("tool_calls"):
            words = "\n".join(filter(None, [words, *(_call_in_words(call) for call in calls)]))
            message = {key: value for key, value in message.items() if key != "tool_calls"}
        elif role == "tool":
            words = f"<tool_response>\n{words}\n</tool_response>"
            message, role = {"role": "user"}, "user"
        if role == "user" and answered:
            texts[-1].append(words)
        else:
            found.append(message)
            texts.append([words])
            answered = role == "user" and "<tool_response>" in words
    return [{**message, "content": "\n".join(words)} for message, words in zip(found, texts, strict=True)]


def _call_in_words(call: Mapping[str, Any]) -> str:
    function = call["function"]
    name, arguments = json.dumps(function["name"], ensure_ascii=False), function["arguments"] or "{}"
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'


def _with_calls(message: Message, convert: Callable[[str], Any]) -> Message:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": convert(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _object(arguments: str) -> Any:
    """Arguments as the object that they are; a text that is none, of an answer that was cut, stays one."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _without_content(message: Message) -> Message:
    return {**message, "content": None} if message.get("tool_calls") and not message["content"] else message


# --- templates that know no tools ----------------------------------------------------------------------------------


def _introduced(messages: list[Message], tools: Sequence[Mapping[str, Any]], *, system: bool) -> list[Message]:
    """The functions, and how to call them, in the system message, or before the first message where there is none."""
    words = introduction(tools)
    first = messages[0] if messages else {"role": "user", "content": ""}
    if first["role"] == "system" or (not system and first["role"] == "user"):
        parts = (first["content"], words) if first["role"] == "system" else (words, first["content"])
        return [{**first, "content": "\n\n".join(filter(None, parts))}, *messages[1:]]
    return [{"role": "system" if system else "user", "content": words}, *messages]


def introduction(tools: Sequence[Mapping[str, Any]]) -> str:
    """What a model reads that was never told of tools by its template."""
    functions = "\n".join(json.dumps(tool.get("function", tool), ensure_ascii=False) for tool in tools)
    return (
        "You can call functions. These are their signatures, each a JSON object with a JSON schema of its parameters:\n"
        f"<tools>\n{functions}\n</tools>\n\n"
        "To call a function, write its name and its arguments as a JSON object between <tool_call> tags:\n"
        '<tool_call>\n{"name": "function name", "arguments": {"parameter": "value"}}\n</tool_call>\n'
        "Write one such block for each call, and nothing behind them. You get the results between <tool_response> tags. "
        "Call a function only where it helps; otherwise answer in words."
    )


# --- looking at a template -----------------------------------------------------------------------------------------

_USER: Message = {"role": "user", "content": "probe_question"}
_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "probe_tool", "description": "probe", "parameters": {"type": "object", "properties": {}}},
}
_PROBE_HISTORY: list[Message] = [
    _USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": "probe1234",
                "type": "function",
                "function": {"name": "probe_call", "arguments": '{"probe_key": "probe_value"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "probe1234", "name": "probe_call", "content": "probe_result"},
]


def _rendered(chat: ChatTemplate, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> str:
    try:
        return chat.render(messages, tools=tools)
    except RequestError:
        return ""


def _takes_system(chat: ChatTemplate) -> bool:
    return "probe_system" in _rendered(chat, [{"role": "system", "content": "probe_system"}, _USER], None)
