"""Bodies of the routes of models that pool, as the server reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, WithJsonSchema, model_validator

from quire.errors import RequestError
from quire.server.protocol import Body, Prompt

MAX_INPUTS = 2048
"""OpenAI's bound."""


class PoolingBody(Body):
    """What these routes share. truncate_prompt_tokens: the first so many tokens of a prompt are used, special ones included; -1: as many as
    the model has."""

    HARMLESS: ClassVar[frozenset[str]] = frozenset({"user", "metadata"})

    model: str | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None

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

    input: Prompt
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    add_special_tokens: bool = True

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

    text_1: str | list[str]
    text_2: str | list[str]

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


class Document(BaseModel):
    """A text, or an object with its text in a field; others are not read."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    text: str

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


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

    REFUSED: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "rank_fields": (None, [], ["text"]),
        "max_chunks_per_doc": (None,),
        "max_tokens_per_doc": (None,),
    }
    INSTEAD: ClassVar[Mapping[str, str]] = {
        "rank_fields": "documents are read by their text",
        "max_tokens_per_doc": "truncate_prompt_tokens cuts query and document together",
    }

    query: str
    documents: Annotated[list[Document], WithJsonSchema(_DOCUMENTS)]
    top_n: int | None = None
    return_documents: bool = True

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
