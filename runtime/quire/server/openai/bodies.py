"""Bodies of /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from pydantic import Field

from quire.errors import RequestError
from quire.request import SamplingParams
from quire.sampling_params import refusal
from quire.server.bodies.chat import Chat
from quire.server.bodies.conversation import ChatMessage, WithTools
from quire.server.bodies.fields import Fields, Refused
from quire.server.bodies.sampling import Prompted, Sampling, checked_logprobs


class StreamOptions(Fields):
    """What a stream tells besides text."""

    IGNORED: ClassVar[Mapping[str, str]] = {"include_obfuscation": "chunks are as long as their text, true or false"}

    include_usage: bool = False


class WithUsage(Sampling):
    """Streams whose usage must be asked for."""

    stream_options: StreamOptions | None = Field(
        None, description="include_usage: a last chunk with the usage; needs stream"
    )

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk; raises RequestError where there is no stream."""
        if self.stream_options is None:
            return False
        if not self.stream:
            raise RequestError("stream_options needs stream: true", param="stream_options", code="invalid_value")
        return self.stream_options.include_usage


class CompletionBody(Prompted, WithUsage):
    """POST /v1/completions."""

    REFUSED: ClassVar[Mapping[str, Refused]] = {
        "suffix": Refused((None, ""), "write the model's own marks for filling in into the prompt"),
    }

    logprobs: int | None = Field(None, description="log probabilities of each token, and of that many likeliest ones")
    echo: bool | None = Field(None, description="the prompt in front of the answer")

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


class ChatBody(WithTools, Chat, WithUsage):
    """POST /v1/chat/completions."""

    MANY_TURNS: ClassVar[bool] = False
    REFUSED: ClassVar[Mapping[str, Refused]] = {
        "functions": Refused((None, []), "tools took its place"),
        "function_call": Refused((None, "none", "auto"), "tool_choice took its place"),
        "audio": Refused(),
        "modalities": Refused((None, ["text"])),
        "prediction": Refused(),
        "web_search_options": Refused(),
    }

    messages: list[ChatMessage] = Field(min_length=1, description="the conversation")
    max_completion_tokens: int | None = Field(None, description="max_tokens by its newer name, which wins")
    logprobs: bool | None = Field(None, description="log probabilities of each token")
    top_logprobs: int | None = Field(None, description="and of that many likeliest ones; needs logprobs")

    def turns(self) -> Sequence[ChatMessage]:
        return self.messages

    @property
    def max_tokens_field(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        top = checked_logprobs("top_logprobs", self.top_logprobs)
        if top and not self.logprobs:
            raise refusal("top_logprobs", top, "0 or absent without logprobs: true")
        return (top or 0) if self.logprobs else None
