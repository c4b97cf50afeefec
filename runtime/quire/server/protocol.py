"""Bodies of the OpenAI surface as the server reads them.

Types are strict (a number in quotes is a bad value). A field that would change the answer and cannot be honoured yet is
refused by `REFUSED` with its name; a field nobody knows is accepted and named in the header `x-quire-ignored-fields`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from quire.errors import RequestError
from quire.request import SamplingParams
from quire.sampling_params import refusal
from quire.server.formats import Formats
from quire.server.tools import Function, Tool, ToolChoice, Tools, checked_tools

MAX_PROMPTS = 128
MAX_LOGPROBS = 20
"""OpenAI's bound; a program in Python may ask for more."""
_OWN_MEANING = frozenset(
    {"max_tokens", "logprobs", "structured_outputs"}
)  # fields whose form differs from that of SamplingParams


class Body(BaseModel):
    """Any body. REFUSED: field to the values that ask for nothing. INSTEAD: what to do instead, where there is something. HARMLESS: fields
    without effect on the answer."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {}
    HARMLESS: ClassVar[frozenset[str]] = frozenset()
    INSTEAD: ClassVar[Mapping[str, str]] = {}

    def ignored_fields(self) -> list[str]:
        """Names of unknown fields; raises RequestError for known ones that cannot be honoured."""
        extra = self.model_extra or {}
        for name, neutral in self.REFUSED.items():
            value = extra.get(name)
            if name in extra and not any(value == other and type(value) is type(other) for other in neutral):
                message = "; ".join(filter(None, [f"{name} is not supported by this server", self.INSTEAD.get(name)]))
                raise RequestError(message, param=name, code="unsupported_parameter")
        return [name for name in extra if name not in self.REFUSED and name not in self.HARMLESS]


class StreamOptions(BaseModel):
    """What a stream tells besides text."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    include_usage: bool = False


class Sampling(Body, Formats):
    """What both kinds of completion share."""

    PROMPT_FIELD: ClassVar[str] = "prompt"
    HARMLESS: ClassVar[frozenset[str]] = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier"})

    model: str | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: str | list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None

    @property
    def scores(self) -> bool:
        """Only the log probabilities of the prompt are wanted, no answer."""
        return False

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        """The name and the value of the limit on generated tokens."""
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        """Likeliest tokens whose log probabilities come with each token of the answer; None: not even its own."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk; raises RequestError where there is no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options", code="invalid_value")
        return self.stream_options.include_usage

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """defaults: of fields that are not set. Raises RequestError that names a field out of bounds."""
        name, max_tokens = self.max_tokens_field
        if max_tokens is not None and max_tokens < 1:
            raise RequestError(f"{name} must be at least 1, got {max_tokens}", param=name, code="invalid_value")
        for field, count in (("logprobs", self.num_logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None and count > MAX_LOGPROBS:
                raise refusal(field, count, f"between 0 and {MAX_LOGPROBS}")
        own = type(self).model_fields.keys() & set(SamplingParams.__struct_fields__) - _OWN_MEANING
        given = {field: value for field in own if (value := getattr(self, field)) is not None}
        params = SamplingParams(
            **{**defaults, **given},
            max_tokens=max_tokens,
            logprobs=self.num_logprobs,
            structured_outputs=self.structured_output(),
        )
        if self.stream and params.num_sequences > params.n:
            raise RequestError(
                f"best_of {params.best_of} with n {params.n} is not possible with stream: true, as the best are known at the end",
                param="best_of",
                code="invalid_value",
            )
        if self.stream and params.prompt_logprobs is not None:
            raise RequestError(
                "prompt_logprobs is not possible with stream: true", param="prompt_logprobs", code="invalid_value"
            )
        return params


def _prompt_kind(value: Any) -> str:
    first = value[0] if isinstance(value, list) and value else None
    if isinstance(value, str) or not isinstance(value, list):
        return "str"
    if isinstance(first, bool):
        return "texts"
    return "ids" if isinstance(first, int) else "lists" if isinstance(first, list) else "texts"


Prompt = Annotated[
    Annotated[str, Tag("str")]
    | Annotated[list[str], Tag("texts")]
    | Annotated[list[int], Tag("ids")]
    | Annotated[list[list[int]], Tag("lists")],
    Discriminator(_prompt_kind),
]


class CompletionBody(Sampling):
    """POST /v1/completions."""

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {**Sampling.REFUSED, "suffix": (None, "")}
    INSTEAD: ClassVar[Mapping[str, str]] = {"suffix": "write the model's own marks for filling in into the prompt"}

    prompt: Prompt
    logprobs: int | None = None
    echo: bool | None = None

    @property
    def scores(self) -> bool:
        """`max_tokens` is 0 together with `echo`: one token is generated and thrown away."""
        return bool(self.echo) and self.max_tokens == 0

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        return "max_tokens", 1 if self.scores else self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    def sampling(self, defaults: Mapping[str, Any]) -> SamplingParams:
        params = super().sampling(defaults)
        if not self.echo or (self.logprobs is None and not self.scores):
            return params
        if self.stream:
            what = "max_tokens 0" if self.scores else "logprobs"
            message = f"echo together with {what} is not possible with stream: true"
            raise RequestError(message, param="echo", code="invalid_value")
        if self.logprobs is None:
            return params
        return msgspec.structs.replace(params, prompt_logprobs=max(params.prompt_logprobs or 0, self.logprobs))


class GenerateBody(Sampling):
    """POST /generate."""

    prompt: Prompt

    def check(self) -> None:
        """Raises RequestError for what an answer of this form has no place for."""
        if self.prompt_logprobs is not None:
            raise refusal("prompt_logprobs", self.prompt_logprobs, "absent here")


class Part(BaseModel):
    """One part of a message's content; only text for now."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    type: str
    text: str | None = None


class CalledFunction(BaseModel):
    """A function that was called. arguments: JSON."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    """`tool_calls[]` of an assistant's message."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """One message; fields beside these reach the template as they are."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class WithTools(Body):
    """Bodies with OpenAI's tools."""

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    def checked_tools(self) -> Tools:
        """Raises RequestError that names the field."""
        functions: list[Function] = []
        for index, tool in enumerate(self.tools or ()):
            if tool.type != "function" or tool.function is None:
                where = f"tools.{index}.{'type' if tool.type != 'function' else 'function'}"
                message = (
                    f"{where}: only tools of type function are possible here, each with function, got {tool.type!r}"
                )
                raise RequestError(message, param=where, code="unsupported_parameter")
            functions.append(tool.function)
        choice = self.tool_choice
        mode, names = choice.read() if isinstance(choice, ToolChoice) else (choice, None)
        return checked_tools(functions, mode, names, parallel=self.parallel_tool_calls)


class Conversation(Sampling):
    """What bodies share whose prompt is a conversation."""

    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    reasoning_effort: str | None = None

    @property
    def effort(self) -> str | None:
        """How much the model should think, in the template's words."""
        return self.reasoning_effort

    @property
    def template_variables(self) -> Mapping[str, Any]:
        """What the chat template gets; the effort as `reasoning_effort`, and as enable_thinking where it is none."""
        effort = self.effort
        known: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            known["enable_thinking"] = False
        return {**known, **(self.chat_template_kwargs or {})}

    def turns(self) -> Sequence[ChatMessage]:
        """The conversation; raises RequestError that names the field."""
        raise NotImplementedError

    def checked_tools(self) -> Tools:
        """The functions that may be called; raises RequestError that names the field."""
        raise NotImplementedError


class ChatBody(WithTools, Conversation):
    """POST /v1/chat/completions."""

    PROMPT_FIELD: ClassVar[str] = "messages"
    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        **Sampling.REFUSED,
        "functions": (None, []),
        "function_call": (None, "none", "auto"),
        "audio": (None,),
        "modalities": (None, ["text"]),
        "prediction": (None,),
        "web_search_options": (None,),
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "functions": "tools took its place",
        "function_call": "tool_choice took its place",
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def turns(self) -> Sequence[ChatMessage]:
        return self.messages

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        top = self.top_logprobs
        if top is not None and not 0 <= top <= MAX_LOGPROBS:
            raise refusal("top_logprobs", top, f"between 0 and {MAX_LOGPROBS}")
        if top and not self.logprobs:
            raise refusal("top_logprobs", top, "0 or absent without logprobs: true")
        return (top or 0) if self.logprobs else None


class TokenizeBody(WithTools):
    """POST /tokenize: a raw prompt, or messages that go through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool = False
