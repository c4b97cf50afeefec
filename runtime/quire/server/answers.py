"""From a job to OpenAI answers: what completions and chat share.

A shape says how text looks in an answer and in a chunk; this module collects or streams, numbers choices, adds usage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from quire.outputs.choice import Choice, Piece, kept
from quire.request import FinishReason, TokenLogprobs
from quire.server.jobs import Job, Usage
from quire.server.logprobs import of_text
from quire.server.streaming import DONE, event
from quire.text.pieces import Pieces

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

    def choice(self, index: int, text: str, reason: str, logprobs: JSON | None) -> JSON:
        """A whole choice."""
        ...

    def opening(self, index: int) -> JSON | None:
        """The chunk that begins a choice, if the endpoint has one."""
        ...

    def chunk(self, index: int, text: str, reason: str | None, logprobs: JSON | None) -> JSON:
        """The choice inside a chunk."""
        ...

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        """What a choice or chunk says about its tokens. offset: characters of the choice's tokens before these."""
        ...

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        """Add the log probabilities of prompts to a whole answer; prompts: for each choice the first of its prompt."""
        ...


async def collect(job: Job, shape: Shape) -> JSON:
    """The whole answer, when every choice has ended."""
    texts = [""] * len(job.choices)
    entries: list[list[TokenLogprobs]] = [[] for _ in job.choices]
    async for piece in job:
        texts[piece.index] += piece.text
        entries[piece.index] += of_text(piece)
    choices: list[JSON] = []
    for place, one in enumerate(kept(job.choices)):
        logprobs = shape.logprobs(entries[one.index], one.text.pieces, 0) if one.tells_logprobs else None
        choices.append(shape.choice(place, texts[one.index], _reason(one.finish_reason), logprobs))
    answer = {**shape.head, "choices": choices, "usage": usage_of(job.usage)}
    firsts = {choice.prompt_index: choice for choice in reversed(job.choices)}
    if firsts[0].prompt_logprobs is not None:
        shape.with_prompt(answer, [firsts[one.prompt_index] for one in kept(job.choices)])
    return answer


async def stream(job: Job, shape: Shape, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Encoded events: for every choice its opening, its text, its reason; then usage if asked for, then the end mark."""
    head = {**shape.chunk_head, **({"usage": None} if include_usage else {})}
    opened: set[int] = set()
    offsets = [0] * len(job.choices)
    async for piece in job:
        if piece.index not in opened:
            opened.add(piece.index)
            if (opening := shape.opening(piece.index)) is not None:
                yield event({**head, "choices": [opening]})
        for choice in _chunks(shape, piece, job.choices[piece.index], offsets):
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


def _chunks(shape: Shape, piece: Piece, choice: Choice, offsets: list[int]) -> Iterator[Mapping[str, Any]]:
    entries, pieces = of_text(piece), choice.text.pieces
    if piece.text or entries:
        logprobs = shape.logprobs(entries, pieces, offsets[piece.index]) if entries else None
        offsets[piece.index] += sum(len(pieces.text_of(entry.token_ids[0])) for entry in entries)
        yield shape.chunk(piece.index, piece.text, None, logprobs)
    if piece.finish_reason is not None:
        yield shape.chunk(piece.index, "", _reason(piece.finish_reason), None)


def _reason(reason: FinishReason | None) -> str:
    return reason.value if reason is not None else FinishReason.ABORT.value
