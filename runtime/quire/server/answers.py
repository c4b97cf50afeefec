"""From a job to OpenAI answers: what completions and chat share.

A shape says how text looks in an answer and in a chunk; this module collects or streams, numbers choices, adds usage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Protocol

from quire.outputs.choice import Piece
from quire.request import FinishReason
from quire.server.jobs import Job, Usage
from quire.server.streaming import DONE, event

JSON = dict[str, Any]


class Shape(Protocol):
    """How one endpoint writes its answers."""

    @property
    def head(self) -> JSON:
        """id, object, created, model."""
        ...

    @property
    def chunk_head(self) -> JSON:
        """The same for a chunk."""
        ...

    def choice(self, index: int, text: str, reason: str) -> JSON:
        """A whole choice."""
        ...

    def opening(self, index: int) -> JSON | None:
        """The chunk that begins a choice, if the endpoint has one."""
        ...

    def chunk(self, index: int, text: str, reason: str | None) -> JSON:
        """The choice inside a chunk."""
        ...


async def collect(job: Job, shape: Shape) -> JSON:
    """The whole answer, when every choice has ended."""
    texts = [""] * len(job.choices)
    async for piece in job:
        texts[piece.index] += piece.text
    choices = [shape.choice(c.index, texts[c.index], _reason(c.finish_reason)) for c in job.choices]
    return {**shape.head, "choices": choices, "usage": usage_of(job.usage)}


async def stream(job: Job, shape: Shape, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Encoded events: for every choice its opening, its text, its reason; then usage if asked for, then the end mark."""
    head = {**shape.chunk_head, **({"usage": None} if include_usage else {})}
    opened: set[int] = set()
    async for piece in job:
        if piece.index not in opened:
            opened.add(piece.index)
            if (opening := shape.opening(piece.index)) is not None:
                yield event({**head, "choices": [opening]})
        for choice in _chunks(shape, piece):
            yield event({**head, "choices": [choice]})
    if include_usage:
        yield event({**shape.chunk_head, "choices": [], "usage": usage_of(job.usage)})
    yield DONE


def usage_of(usage: Usage) -> JSON:
    """The usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _chunks(shape: Shape, piece: Piece) -> Iterator[Mapping[str, Any]]:
    if piece.text:
        yield shape.chunk(piece.index, piece.text, None)
    if piece.finish_reason is not None:
        yield shape.chunk(piece.index, "", _reason(piece.finish_reason))


def _reason(reason: FinishReason | None) -> str:
    return reason.value if reason is not None else FinishReason.ABORT.value
