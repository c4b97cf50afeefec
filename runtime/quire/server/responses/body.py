"""The body of /v1/responses as a conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from quire.errors import RequestError, shown
from quire.sampling_params import refusal
from quire.server.protocol import MAX_LOGPROBS, ChatMessage, Conversation
from quire.server.tools import Function, Mode, Tools, checked_tools
from quire.structured import StructuredOutput, structured_output

_CONFIG = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())
_TEXT_PARTS = ("input_text", "output_text", "text")
LOGPROBS = "message.output_text.logprobs"

Item = Mapping[str, Any]


class TextFormat(BaseModel):
    """`text.format`."""

    model_config = _CONFIG
    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class TextConfig(BaseModel):
    """`text`."""

    model_config = _CONFIG
    format: TextFormat | None = None


class Reasoning(BaseModel):
    """`reasoning`."""

    model_config = _CONFIG
    effort: str | None = None


class ResponseTool(Function):
    """`tools[]`; a name is needed where the type is function."""

    type: str
    name: str = ""


class Choice(BaseModel):
    """`tool_choice` where it is an object."""

    model_config = _CONFIG
    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class ResponsesBody(Conversation):
    """POST /v1/responses."""

    PROMPT_FIELD: ClassVar[str] = "input"
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **Conversation.REFUSED,
        "store": (None, False),
        "previous_response_id": (None,),
        "conversation": (None,),
        "background": (None, False),
        "prompt": (None,),
        "truncation": (None, "disabled"),
        "context_management": (None, []),
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "store": "nothing is stored here; leave it out or set it to false",
        "previous_response_id": "nothing is stored here; send the whole conversation as input",
        "conversation": "nothing is stored here; send the whole conversation as input",
        "background": "nothing is stored here; use stream: true",
        "truncation": "use truncate_prompt_tokens, or send less",
    }
    HARMLESS: ClassVar[frozenset[str]] = frozenset(
        {"user", "service_tier", "safety_identifier", "prompt_cache_key", "max_tool_calls"}
    )

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None

    def ignored_fields(self) -> list[str]:
        """Those of the body and what of `include` there is not here."""
        return super().ignored_fields() + [f"include.{name}" for name in self.include or () if name != LOGPROBS]

    def check(self) -> None:
        """Raises RequestError for what an answer of this form has no place for."""
        for name, value in (("n", self.n), ("best_of", self.best_of)):
            if value not in (None, 1):
                raise refusal(name, value, "1 or absent here")
        if self.prompt_logprobs is not None:
            raise refusal("prompt_logprobs", self.prompt_logprobs, "absent here")

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        if self.max_output_tokens is not None:
            return "max_output_tokens", self.max_output_tokens
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        top = self.top_logprobs
        if top is not None and not 0 <= top <= MAX_LOGPROBS:
            raise refusal("top_logprobs", top, f"between 0 and {MAX_LOGPROBS}")
        return (top or 0) if top or LOGPROBS in (self.include or ()) else None

    @property
    def effort(self) -> str | None:
        return self.reasoning.effort if self.reasoning is not None else self.reasoning_effort

    def structured_output(self) -> StructuredOutput | None:
        own = super().structured_output()
        wanted = self.text.format if self.text is not None else None
        if wanted is None or wanted.type == "text":
            return own
        if own is not None:
            raise RequestError(f"only one of {own.param} and text.format may be given", param="text.format")
        if wanted.type == "json_object":
            return structured_output(json_object=True, param="text.format")
        if wanted.schema_ is None:
            raise RequestError("text.format.schema is required with type json_schema", param="text.format")
        return structured_output(json=wanted.schema_, param="text.format")

    def checked_tools(self) -> Tools:
        for index, tool in enumerate(self.tools or ()):
            if tool.type != "function":
                raise RequestError(
                    f"tools.{index}.type must be function, got {shown(tool.type)}: this server runs no tools of its own",
                    param=f"tools.{index}.type",
                    code="unsupported_parameter",
                )
        mode, names = self._choice()
        functions = [
            Function.model_validate(one.model_dump(exclude_unset=True, exclude={"type"})) for one in self.tools or ()
        ]
        return checked_tools(functions, mode, names, parallel=self.parallel_tool_calls, schema_field="parameters")

    def _choice(self) -> tuple[Mode | None, list[str] | None]:
        choice = self.tool_choice
        if not isinstance(choice, Choice):
            return choice, None
        if choice.type == "function" and choice.name is not None:
            return "required", [choice.name]
        if choice.type == "allowed_tools" and choice.tools is not None:
            tools = enumerate(choice.tools)
            return choice.mode or "auto", [_string(tool, "name", f"tool_choice.tools.{index}") for index, tool in tools]
        raise RequestError(
            f"tool_choice must be none, auto, required, a function with its name, or allowed_tools, got type {shown(choice.type)}",
            param="tool_choice",
            code="invalid_value",
        )

    def turns(self) -> list[ChatMessage]:
        found: list[dict[str, Any]] = []
        if self.instructions:
            found.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            found.append({"role": "user", "content": self.input})
        else:
            _add_items(self.input, found)
        if not found:
            raise RequestError("input must not be empty", param="input", code="invalid_value")
        return [ChatMessage.model_validate(message) for message in found]


def _add_items(items: Sequence[Item], found: list[dict[str, Any]]) -> None:
    """Items as messages: what the assistant thought, said and called in one turn is one message."""
    thought = ""
    for index, item in enumerate(items):
        where, kind = f"input.{index}", item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            if role not in ("system", "developer", "user", "assistant"):
                raise _bad(f"{where}.role", f"must be system, developer, user or assistant, got {shown(role)}")
            message = {"role": role, "content": _text(item.get("content"), f"{where}.content")}
        elif kind == "function_call":
            call = {"name": _string(item, "name", where), "arguments": _string(item, "arguments", where)}
            calls = [{"id": _string(item, "call_id", where), "type": "function", "function": call}]
            last = found[-1] if found else {}
            if last.get("role") == "assistant" and not thought:
                last["tool_calls"] = last.get("tool_calls", []) + calls
                continue
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        elif kind == "function_call_output":
            output = _text(item.get("output"), f"{where}.output")
            message = {"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": output}
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if not isinstance(parts, list):
                raise _bad(f"{where}.content", f"must be a list of parts, got {shown(parts)}")
            thought += "\n".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))
            continue
        else:
            raise RequestError(
                f"{where}.type {shown(kind)} is not supported: items are messages, function calls, their outputs and reasoning",
                param=f"{where}.type",
                code="unsupported_content",
            )
        if thought and message["role"] == "assistant":
            message["reasoning_content"], thought = thought, ""
        found.append(message)


def _text(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(where, f"must be a text or a list of text parts, got {shown(content)}")
    texts: list[str] = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else None
        if kind not in (*_TEXT_PARTS, "refusal") or not isinstance(text, str):
            raise RequestError(
                f"{where}.{number} has type {shown(kind)}; this model takes text parts only",
                param=f"{where}.{number}",
                code="unsupported_content",
            )
        texts.append(text)
    return "\n".join(texts)


def _string(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise _bad(f"{where}.{name}", f"must be a text, got {shown(value)}")
    return value


def _bad(param: str, what: str) -> RequestError:
    return RequestError(f"{param} {what}", param=param, code="invalid_value")
