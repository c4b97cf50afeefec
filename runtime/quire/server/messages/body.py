"""The body of /v1/messages as a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from quire.errors import RequestError, shown
from quire.request import SamplingParams
from quire.sampling_params import refusal
from quire.server.protocol import ChatMessage, Conversation
from quire.server.tools import Function, Mode, Tools, checked_tools
from quire.structured import StructuredOutput, structured_output

_CONFIG = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())

Block = Mapping[str, Any]


class Turn(BaseModel):
    """`messages[]`."""

    model_config = _CONFIG
    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class OfferedTool(BaseModel):
    """`tools[]`."""

    model_config = _CONFIG
    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Choice(BaseModel):
    """`tool_choice`."""

    model_config = _CONFIG
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(BaseModel):
    """`thinking`."""

    model_config = _CONFIG
    type: str


class OutputFormat(BaseModel):
    """`output_config.format`."""

    model_config = _CONFIG
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(BaseModel):
    """`output_config`."""

    model_config = _CONFIG
    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(Conversation):
    """POST /v1/messages/count_tokens."""

    PROMPT_FIELD: ClassVar[str] = "messages"
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **Conversation.REFUSED,
        "container": (None,),
        "mcp_servers": (None, []),
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset({"metadata", "service_tier", "cache_control"})

    messages: list[Turn] = Field(min_length=1)
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: Choice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None

    def ignored_fields(self) -> list[str]:
        inner = (self.thinking.model_extra if self.thinking is not None else None) or {}
        return super().ignored_fields() + [f"thinking.{name}" for name in inner if name != "display"]

    def check(self) -> None:
        """Raises RequestError for what an answer of this form has no place for."""
        for name, value in (("n", self.n), ("best_of", self.best_of)):
            if value not in (None, 1):
                raise refusal(name, value, "1 or absent here")
        if self.prompt_logprobs is not None:
            raise refusal("prompt_logprobs", self.prompt_logprobs, "absent here")

    @property
    def effort(self) -> str | None:
        return self.output_config.effort if self.output_config is not None else self.reasoning_effort

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """`thinking` is enable_thinking, a variable of chat templates."""
        kind = None if self.thinking is None else self.thinking.type
        known = {"enable_thinking": kind == "enabled"} if kind in ("enabled", "disabled") else {}
        return {**known, **super().template_variables}

    def structured_output(self) -> StructuredOutput | None:
        own = super().structured_output()
        wanted = self.output_config.format if self.output_config is not None else None
        if wanted is None:
            return own
        if own is not None:
            message = f"only one of {own.param} and output_config.format may be given"
            raise RequestError(message, param="output_config.format", code="invalid_value")
        return structured_output(json=wanted.schema_, param="output_config.format")

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        params = super().sampling(defaults)
        if not self.stop_sequences:
            return params
        try:
            return msgspec.structs.replace(params, stop=tuple(self.stop_sequences))
        except RequestError as exc:
            words = str(exc).replace("stop must", "stop_sequences must")
            raise RequestError(words, param="stop_sequences", code=exc.code) from None

    def checked_tools(self) -> Tools:
        functions: list[Function] = []
        for index, tool in enumerate(self.tools or ()):
            if tool.type not in (None, "custom"):
                where = f"tools.{index}.type"
                message = (
                    f"{where} must be custom or absent, got {shown(tool.type)}: this server runs no tools of its own"
                )
                raise RequestError(message, param=where, code="unsupported_parameter")
            functions.append(Function(name=tool.name, description=tool.description or "", parameters=tool.input_schema))
        mode, names, parallel = self._choice()
        return checked_tools(functions, mode, names, parallel=parallel, schema_field="input_schema")

    def _choice(self) -> tuple[Mode | None, list[str] | None, bool | None]:
        choice = self.tool_choice
        if choice is None:
            return None, None, None
        parallel = not choice.disable_parallel_tool_use
        if choice.type != "tool":
            modes: dict[str, Mode] = {"any": "required", "auto": "auto", "none": "none"}
            return modes[choice.type], None, parallel
        if choice.name is None:
            raise RequestError("tool_choice.name is required with type tool", param="tool_choice.name")
        return "required", [choice.name], parallel

    def turns(self) -> list[ChatMessage]:
        found: list[dict[str, Any]] = []
        if system := _text(self.system or "", "system"):
            found.append({"role": "system", "content": system})
        for index, turn in enumerate(self.messages):
            where = f"messages.{index}.content"
            if isinstance(turn.content, str):
                found.append({"role": turn.role, "content": turn.content})
            elif turn.role == "assistant":
                found.append(_of_assistant(turn.content, where))
            else:
                found += _of_user(turn.role, turn.content, where)
        return [ChatMessage.model_validate(message) for message in found]


class MessagesBody(CountBody):
    """POST /v1/messages."""

    max_tokens: int

    def turns(self) -> list[ChatMessage]:
        found, last = super().turns(), len(self.messages) - 1
        if self.messages[last].role == "assistant" and self.add_generation_prompt:
            what = "must not be assistant in the last message: an answer cannot go on with a text that is given here; say in a user's message how it begins"
            raise _bad(f"messages.{last}.role", what)
        return found


def _of_assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """What the assistant thought, said and called, as one message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        match block.get("type"):
            case "text":
                texts.append(_string(block, "text", place))
            case "thinking":
                thoughts.append(_string(block, "thinking", place))
            case "redacted_thinking":
                pass
            case "tool_use":
                given = block.get("input")
                if not isinstance(given, dict):
                    raise _bad(f"{place}.input", f"must be an object, got {shown(given)}")
                function = {"name": _string(block, "name", place), "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": _string(block, "id", place), "type": "function", "function": function})
            case kind:
                raise _unsupported(place, kind, "text, thinking and tool_use blocks")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _of_user(role: str, blocks: Sequence[Block], where: str) -> list[dict[str, Any]]:
    """Results of tools, each a message of its own, and what is said besides, in order."""
    found: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        kind = block.get("type")
        if kind == "tool_result":
            result = _text(block.get("content") or "", f"{place}.content")
            found.append({"role": "tool", "tool_call_id": _string(block, "tool_use_id", place), "content": result})
        elif kind == "text":
            text = _string(block, "text", place)
            if found and found[-1]["role"] == role:
                found[-1]["content"] += "\n" + text
            else:
                found.append({"role": role, "content": text})
        else:
            raise _unsupported(place, kind, "text and tool_result blocks")
    return found or [{"role": role, "content": ""}]


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(where, f"must be a text or a list of blocks, got {shown(content)}")
    texts: list[str] = []
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind != "text":
            raise _unsupported(f"{where}.{number}", kind, "text blocks")
        texts.append(_string(block, "text", f"{where}.{number}"))
    return "\n".join(texts)


def _string(block: Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise _bad(f"{where}.{name}", f"must be a text, got {shown(value)}")
    return value


def _unsupported(where: str, kind: object, takes: str) -> RequestError:
    message = f"{where} has type {shown(kind)}; this model takes {takes} here"
    return RequestError(message, param=where, code="unsupported_content")


def _bad(param: str, what: str) -> RequestError:
    return RequestError(f"{param} {what}", param=param, code="invalid_value")
