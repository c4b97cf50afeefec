"""Bodies of the routes of models that pool, as the server reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from quire.errors import RequestError
from quire.server.bodies.fields import Body, Fields, Refused
from quire.server.bodies.sampling import Prompt

MAX_INPUTS = 2048
"""OpenAI's bound."""


class PoolingBody(Body):
    """What these routes share."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "user": "nothing is counted or kept for it; keys are",
        "metadata": "nothing is stored",
    }

    model: str | None = Field(None, description="the served name; default: the first one")
    truncate_prompt_tokens: int | None = Field(
        None,
        description="the first so many tokens of a prompt are used, special ones included; -1: as many as the model has",
    )
    priority: int | None = Field(None, description="lower is more urgent; needs --scheduler-policy=priority")
    cache_salt: str | None = Field(None, description="only requests of the same salt share cached prefixes")

    def kept(self, limit: int) -> int | None:
        """How many tokens of a prompt are used; None where more are a fault. Raises RequestError. limit: the model's length."""
        given = self.truncate_prompt_tokens
        if given is None:
            return None
        if given != -1 and not 1 <= given <= limit:
            raise RequestError(
                f"truncate_prompt_tokens must be -1 or between 1 and {limit}, the model's length, got {given}",
                param="truncate_prompt_tokens",
                code="invalid_value",
            )
        return limit if given == -1 else given


class EmbeddingBody(PoolingBody):
    """POST /v1/embeddings."""

    PROMPT_FIELD: ClassVar[str] = "input"

    input: Prompt = Field(description="a text, texts, token ids or lists of token ids")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="float (the default), or base64: of float32, in little-endian order"
    )
    dimensions: int | None = Field(None, description="how many numbers a vector is to have, normalised anew")
    add_special_tokens: bool | None = Field(None, description="false: the prompt as it is")

    def inputs(self) -> list[str | list[int]]:
        """One for each vector; raises RequestError where there is none, or there are too many."""
        match self.input:
            case str(text):
                return [text]
            case [int(), *_]:
                return [self.input]  # type: ignore[list-item]
        given: list[str | list[int]] = list(self.input)  # type: ignore[arg-type]
        check_count(len(given), "input")
        return given

    def checked_dimensions(self, size: int) -> int:
        """How many numbers a vector is to have; size: how many the model's have."""
        wanted = self.dimensions
        if wanted is not None and not 1 <= wanted <= size:
            raise RequestError(
                f"dimensions must be between 1 and {size}, the size of the model's vectors, got {wanted}",
                param="dimensions",
                code="invalid_value",
            )
        return size if wanted is None else wanted


class ScoreBody(PoolingBody):
    """POST /v1/score: a text with each of others, or texts pairwise."""

    text_1: str | list[str] = Field(description="a text, or as many as text_2 has")
    text_2: str | list[str] = Field(description="a text or texts")

    def texts(self) -> tuple[list[str], list[str]]:
        """Both sides, the first of one text or of as many as the second; raises RequestError."""
        first, second = ([given] if isinstance(given, str) else list(given) for given in (self.text_1, self.text_2))
        check_count(len(first), "text_1")
        check_count(len(second), "text_2")
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"text_1 must be one text or as many as text_2 has, got {len(first)} and {len(second)}",
                param="text_1",
                code="invalid_value",
            )
        return first, second


class Document(Fields):
    """A text, or an object with its text in a field."""

    PASSED_ON: ClassVar[bool] = True
    OTHERS: ClassVar[str] = "not looked at"

    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"text": value}
        if not isinstance(value, (dict, Document)):
            raise PydanticCustomError(
                "document", "input should be a text, or an object with its text in the field text"
            )
        return value


_DOCUMENTS = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        ]
    },
}


class RerankBody(PoolingBody):
    """POST /v1/rerank."""

    REFUSED: ClassVar[Mapping[str, Refused]] = {
        "rank_fields": Refused((None, [], ["text"]), "documents are read by their text"),
        "max_chunks_per_doc": Refused(),
        "max_tokens_per_doc": Refused(instead="truncate_prompt_tokens cuts query and document together"),
    }

    query: str = Field(description="what the documents are compared with")
    documents: Annotated[list[Document], WithJsonSchema(_DOCUMENTS)] = Field(
        description="texts, or objects with a text"
    )
    top_n: int | None = Field(None, description="how many come back, the nearest first; 0 is all")
    return_documents: bool | None = Field(None, description="with their texts, unless false")

    def texts(self) -> list[str]:
        """Of the documents; raises RequestError."""
        check_count(len(self.documents), "documents")
        return [one.text for one in self.documents]

    def count(self) -> int:
        """How many come back; 0 is all, as absence is."""
        if self.top_n is not None and self.top_n < 0:
            raise RequestError(
                f"top_n must be at least 0 (all documents), got {self.top_n}", param="top_n", code="invalid_value"
            )
        return self.top_n or len(self.documents)


def check_count(count: int, param: str) -> None:
    """Raises RequestError where a list is empty or too long."""
    if not 1 <= count <= MAX_INPUTS:
        raise RequestError(
            f"{param} must be a list of 1 to {MAX_INPUTS} items, got {count}", param=param, code="invalid_value"
        )
