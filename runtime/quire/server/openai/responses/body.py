"""The body of /v1/responses as a conversation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from quire.errors import RequestError, shown
from quire.sampling_params import MAX_ENTRIES
from quire.server.bodies.chat import Chat
from quire.server.bodies.conversation import ChatMessage
from quire.server.bodies.fields import Fields, Refused, bad, few, text_in
from quire.server.bodies.sampling import checked_logprobs
from quire.server.bodies.tools import Function, Mode, Tools, checked_tools
from quire.structured import StructuredOutput, structured_output

_TEXT_PARTS = ("input_text", "output_text", "text")
LOGPROBS = "message.output_text.logprobs"
WHOLE = "nothing is stored here: send the whole conversation as input"

Item = Mapping[str, Any]


class TextFormat(Fields):
    """`text.format`."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "name": "comes back",
        "description": "comes back",
        "strict": "comes back; the schema is always kept to the letter",
    }

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class TextConfig(Fields):
    """`text`."""

    format: TextFormat | None = None


class Reasoning(Fields):
    """`reasoning`."""

    effort: str | None = None


class ResponseTool(Function):
    """`tools[]`; a name is needed where the type is function."""

    type: str
    name: str = ""


class Choice(Fields):
    """`tool_choice` where it is an object."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[dict[str, Any]] | None = None


class ResponsesBody(Chat):
    """POST /v1/responses."""

    PROMPT_FIELD: ClassVar[str] = "input"
    REFUSED: ClassVar[Mapping[str, Refused]] = {
        "store": Refused((None, False), "nothing is stored here: leave it out or set it to false"),
        "previous_response_id": Refused(instead=WHOLE),
        "conversation": Refused(instead=WHOLE),
        "background": Refused((None, False), "nothing is stored here: use stream: true"),
        "prompt": Refused(),
        "truncation": Refused((None, "disabled"), "use truncate_prompt_tokens, or send less"),
        "context_management": Refused((None, [])),
        "n": Refused((None, 1)),
        "best_of": Refused((None, 1)),
        "prompt_logprobs": Refused(),
    }
    IGNORED: ClassVar[Mapping[str, str]] = {
        "user": "nothing is counted or kept for it; keys are",
        "service_tier": "there is one",
        "safety_identifier": "nothing is counted or kept for it",
        "prompt_cache_key": "prefixes are always cached; cache_salt keeps them apart",
        "prompt_cache_retention": "prefixes stay cached as long as there is room",
        "stream_options": "the usage is always told, and chunks are as long as their text",
        "max_tool_calls": "of tools of the server, which has none",
    }

    LONG: ClassVar[frozenset[str]] = Chat.LONG | {"text"}

    input: str | list[dict[str, Any]] = Field(
        description="a text, or items: messages (text parts), function_call, function_call_output, reasoning"
    )
    instructions: str | None = Field(None, description="a system message in front")
    max_output_tokens: int | None = Field(None, description="max_tokens by the name of this API, which wins")
    text: TextConfig | None = Field(None, description="format: text, json_object, json_schema")
    reasoning: Reasoning | None = Field(None, description="effort: reasoning_effort")
    tools: list[ResponseTool] | None = Field(None, description="functions that may be called")
    tool_choice: Literal["none", "auto", "required"] | Choice | None = Field(
        None, description="none, auto, required, a function, or allowed_tools"
    )
    parallel_tool_calls: bool | None = Field(None, description="false ends the answer behind its first call")
    top_logprobs: int | None = Field(
        None, description="log probabilities of each token and of that many likeliest ones"
    )
    include: list[str] | None = Field(None, description=f"{LOGPROBS}: log probabilities; others are not known")
    metadata: Annotated[dict[str, str] | None, few(MAX_ENTRIES)] = Field(None, description="comes back")

    def unknown_fields(self, where: str = "") -> Iterator[str]:
        """Those of the body and what of `include` there is not here."""
        yield from super().unknown_fields(where)
        yield from (f"{where}include.{name}" for name in self.include or () if name != LOGPROBS)

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        if self.max_output_tokens is not None:
            return "max_output_tokens", self.max_output_tokens
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        top = checked_logprobs("top_logprobs", self.top_logprobs)
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
            return choice.mode or "auto", [text_in(tool, "name", f"tool_choice.tools.{index}") for index, tool in tools]
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
                raise bad(f"{where}.role", f"must be system, developer, user or assistant, got {shown(role)}")
            message = {"role": role, "content": _text(item.get("content"), f"{where}.content")}
        elif kind == "function_call":
            call = {"name": text_in(item, "name", where), "arguments": text_in(item, "arguments", where)}
            calls = [{"id": text_in(item, "call_id", where), "type": "function", "function": call}]
            last = found[-1] if found else {}
            if last.get("role") == "assistant" and not thought:
                last.setdefault("tool_calls", []).extend(calls)
                continue
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        elif kind == "function_call_output":
            output = _text(item.get("output"), f"{where}.output")
            message = {"role": "tool", "tool_call_id": text_in(item, "call_id", where), "content": output}
        elif kind == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            if not isinstance(parts, list):
                raise bad(f"{where}.content", f"must be a list of parts, got {shown(parts)}")
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
        raise bad(where, f"must be a text or a list of text parts, got {shown(content)}")
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
