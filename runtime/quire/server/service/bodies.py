"""Bodies of /generate, /tokenize and /detokenize."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from quire.server.bodies.conversation import ChatMessage, Templated, WithTools
from quire.server.bodies.fields import Body, Refused
from quire.server.bodies.sampling import Prompted


class GenerateBody(Prompted):
    """POST /generate."""

    REFUSED: ClassVar[Mapping[str, Refused]] = {"prompt_logprobs": Refused(instead="/v1/completions tells them")}


class TokenizeBody(WithTools, Templated):
    """POST /tokenize: a raw prompt, or messages that go through the chat template."""

    IGNORED: ClassVar[Mapping[str, str]] = {"parallel_tool_calls": "is no part of the prompt"}

    model: str | None = Field(None, description="the served name; default: the first one")
    prompt: str | None = Field(None, description="a text; either this or messages")
    messages: list[ChatMessage] | None = Field(None, description="the conversation")
    add_special_tokens: bool | None = Field(None, description="false: no begin token in front of prompt")
    return_token_strs: bool = Field(False, description="the spelling of each token too")


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = Field(None, description="the served name; default: the first one")
    tokens: list[int] = Field(description="token ids")
    skip_special_tokens: bool = Field(False, description="control tokens are no text")
