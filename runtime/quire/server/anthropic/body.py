"""The body of /v1/messages as a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field

from quire.errors import RequestError, shown
from quire.request import SamplingParams
from quire.server.bodies.chat import Chat
from quire.server.bodies.conversation import ChatMessage, Conversation
from quire.server.bodies.fields import Fields, Refused, bad, text_in
from quire.server.bodies.tools import Function, Mode, Tools, checked_tools
from quire.structured import StructuredOutput, structured_output

Block = Mapping[str, Any]

CACHED = "prefixes are always cached"


class Turn(Fields):
    """`messages[]`."""

    PASSED_ON: ClassVar[bool] = True
    OTHERS: ClassVar[str] = "not looked at"

    role: Literal["user", "assistant", "system"]
    content: str | list[dict[str, Any]]


class OfferedTool(Fields):
    """`tools[]`."""

    IGNORED: ClassVar[Mapping[str, str]] = {"cache_control": CACHED}

    name: str
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Choice(Fields):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Fields):
    """`thinking`."""

    IGNORED: ClassVar[Mapping[str, str]] = {"display": "thinking comes as the model wrote it"}

    type: str


class OutputFormat(Fields):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Fields):
    """`output_config` where tokens are counted."""

    IGNORED: ClassVar[Mapping[str, str]] = {"format": "what an answer must look like is no part of the prompt"}

    effort: str | None = None


class AnswerConfig(OutputConfig):
    """`output_config`."""

    IGNORED: ClassVar[Mapping[str, str]] = {}

    format: OutputFormat | None = None


class CountBody(Conversation):
    """POST /v1/messages/count_tokens."""

    REFUSED: ClassVar[Mapping[str, Refused]] = {"container": Refused(), "mcp_servers": Refused((None, []))}
    IGNORED: ClassVar[Mapping[str, str]] = {
        "metadata": "nothing is stored",
        "service_tier": "there is one",
        "cache_control": CACHED,
    }

    model: str | None = Field(None, description="the served name; default: the first one")
    messages: list[Turn] = Field(min_length=1, description="a last one of the assistant is what the answer begins with")
    system: str | list[dict[str, Any]] | None = Field(None, description="a text or text blocks")
    tools: list[OfferedTool] | None = Field(None, description="custom tools, as functions of OpenAI's")
    tool_choice: Choice | None = Field(
        None, description="any and tool force a call; disable_parallel_tool_use ends the answer behind the first"
    )
    thinking: Thinking | None = Field(
        None, description="enabled and disabled are enable_thinking, a variable of the chat template"
    )
    output_config: OutputConfig | None = Field(None, description="effort: reasoning_effort")

    @property
    def effort(self) -> str | None:
        return self.output_config.effort if self.output_config is not None else self.reasoning_effort

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """`thinking` is enable_thinking, a variable of chat templates."""
        kind = None if self.thinking is None else self.thinking.type
        known = {"enable_thinking": kind == "enabled"} if kind in ("enabled", "disabled") else {}
        return {**known, **super().template_variables}

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

    @property
    def continues(self) -> bool:
        """A last message of the assistant's is the beginning of the answer."""
        begun = self.messages[-1].role == "assistant" and self.add_generation_prompt
        return begun or self.continue_final_message

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
        if self.continues and not _begins_answer(self.messages[-1].content):
            what = "must end in a text, without calls: it is of the last message, and the answer goes on with it"
            raise bad(where, what)
        return [ChatMessage.model_validate(message) for message in found]


class MessagesBody(CountBody, Chat):
    """POST /v1/messages."""

    REFUSED: ClassVar[Mapping[str, Refused]] = {
        **CountBody.REFUSED,
        "n": Refused((None, 1)),
        "best_of": Refused((None, 1)),
        "prompt_logprobs": Refused(),
    }

    LONG: ClassVar[frozenset[str]] = Chat.LONG | {"output_config"}

    max_tokens: int = Field(description="generated tokens at most")
    stop_sequences: list[str] | None = Field(None, description="the text ends before the earliest of these")
    output_config: AnswerConfig | None = Field(None, description="format: structured output; effort: reasoning_effort")

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


def _begins_answer(content: str | Sequence[Block]) -> bool:
    """Whether an answer can go on with it: the text comes last, and is not blank."""
    if isinstance(content, str):
        return bool(content.strip())
    if not content or any(block.get("type") == "tool_use" for block in content):
        return False
    return bool(str(content[-1].get("text") or "").strip())


def _of_assistant(blocks: Sequence[Block], where: str) -> dict[str, Any]:
    """What the assistant thought, said and called, as one message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        match block.get("type"):
            case "text":
                texts.append(text_in(block, "text", place))
            case "thinking":
                thoughts.append(text_in(block, "thinking", place))
            case "redacted_thinking":
                pass
            case "tool_use":
                given = block.get("input")
                if not isinstance(given, dict):
                    raise bad(f"{place}.input", f"must be an object, got {shown(given)}")
                function = {"name": text_in(block, "name", place), "arguments": json.dumps(given, ensure_ascii=False)}
                calls.append({"id": text_in(block, "id", place), "type": "function", "function": function})
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
    texts: list[str] = []

    def say() -> None:
        if texts:
            found.append({"role": role, "content": "\n".join(texts)})
            texts.clear()

    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        kind = block.get("type")
        if kind == "tool_result":
            say()
            result = _text(block.get("content") or "", f"{place}.content")
            found.append({"role": "tool", "tool_call_id": text_in(block, "tool_use_id", place), "content": result})
        elif kind == "text":
            texts.append(text_in(block, "text", place))
        else:
            raise _unsupported(place, kind, "text and tool_result blocks")
    say()
    return found or [{"role": role, "content": ""}]


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, f"must be a text or a list of blocks, got {shown(content)}")
    texts: list[str] = []
    for number, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind != "text":
            raise _unsupported(f"{where}.{number}", kind, "text blocks")
        texts.append(text_in(block, "text", f"{where}.{number}"))
    return "\n".join(texts)


def _unsupported(where: str, kind: object, takes: str) -> RequestError:
    return bad(where, f"has type {shown(kind)}; this model takes {takes} here", code="unsupported_content")
