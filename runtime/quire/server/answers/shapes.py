"""From a job to OpenAI answers: what completions and chat share.

`follow` reads the text of a job into parts. A shape says how parts look in an answer and in a chunk; this module collects or streams,
numbers choices, adds usage.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Raw
from msgspec.json import encode

from quire.outputs.choice import Choice, kept
from quire.outputs.parts import Message, Part
from quire.outputs.reader import Reader, Reading
from quire.request import FinishReason, TokenLogprobs
from quire.server.answers.logprobs import of_text
from quire.server.answers.streaming import DONE, event
from quire.server.bodies.prompts import beside
from quire.server.flight.jobs import Job
from quire.server.flight.work import Usage
from quire.text.pieces import Pieces

JSON = dict[str, Any]

ENTRY_CHARS = 100
"""An entry of a token and its likeliest ones takes about as long to write as the encoding of so many characters."""
TOOL_CALLS = "tool_calls"
"""The reason of an answer that has calls, all of them whole, and was not cut."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a choice has more than before. entries: log probabilities of its tokens. reason: it has ended, this is why."""

    index: int
    parts: Sequence[Part]
    entries: Sequence[TokenLogprobs]
    reason: str | None


async def follow(job: Job, reading: Reading, *, tells_end: bool = False) -> AsyncIterator[Step]:
    """Everything that comes for the choices of a job, read; each ends with a reason. tells_end: as of a shape."""
    readers = [reading.reader() for _ in job.choices]
    async for piece in job:
        reader, ended = readers[piece.index], piece.finish_reason
        parts = reader.push(piece.text, final=ended is not None)
        reason = None if ended is None else told_reason(ended, reader)
        if reason is None and reader.enough:
            job.end(piece.index)
            reason = TOOL_CALLS
        yield Step(piece.index, parts, piece.logprobs if tells_end else of_text(piece), reason)


def told_reason(reason: FinishReason, reader: Reader) -> str:
    """Why an answer ended: an answer that was cut says so, also where it has calls."""
    return TOOL_CALLS if reason is FinishReason.STOP and reader.called else reason.value


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

    @property
    def tells_end(self) -> bool:
        """Whether a token that ended the text and is no part of it has log probabilities all the same."""
        ...

    def choice(self, index: int, message: Message, reason: str, logprobs: JSON | None) -> JSON:
        """A whole choice."""
        ...

    def opening(self, choice: Choice) -> JSON | None:
        """The chunk that begins a choice, if the endpoint has one."""
        ...

    def chunk(self, index: int, part: Part | None, reason: str | None, logprobs: JSON | None) -> JSON:
        """The choice inside a chunk."""
        ...

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        """What a choice or chunk says about its tokens. offset: characters of the choice's tokens before these."""
        ...

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        """Add what an answer says about prompts; prompts: for each choice the first of its prompt."""
        ...


async def collect(job: Job, shape: Shape, reading: Reading) -> JSON:
    """The whole answer, when every choice has ended; what it says of many tokens is written beside the event loop."""
    messages = [Message() for _ in job.choices]
    entries: list[list[TokenLogprobs]] = [[] for _ in job.choices]
    reasons = [FinishReason.ABORT.value] * len(job.choices)
    async for step in follow(job, reading, tells_end=shape.tells_end):
        messages[step.index].add(step.parts)
        entries[step.index] += step.entries
        reasons[step.index] = step.reason or reasons[step.index]
    firsts = {choice.prompt_index: choice for choice in reversed(job.choices)}

    def told() -> JSON:
        choices: list[JSON] = []
        for place, one in enumerate(kept(job.choices)):
            logprobs = shape.logprobs(entries[one.index], one.text.pieces, 0) if one.tells_logprobs else None
            choices.append(shape.choice(place, messages[one.index], reasons[one.index], logprobs))
        answer = {**shape.head, "choices": choices, "usage": usage_of(job.usage)}
        shape.with_prompt(answer, [firsts[one.prompt_index] for one in kept(job.choices)])
        # one by one: all at once would hold the interpreter's lock for as long
        return {**answer, "choices": [Raw(encode(one)) for one in choices]}

    num_entries = sum(map(len, entries)) + sum(len(first.prompt_logprobs or ()) for first in firsts.values())
    return await beside(num_entries * ENTRY_CHARS, told)


async def stream(job: Job, shape: Shape, reading: Reading, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
    """Encoded events: for every choice its opening, its parts, its reason; then usage if asked for, then the end mark."""
    head = {**shape.chunk_head, **({"usage": None} if include_usage else {})}
    opened: set[int] = set()
    offsets = [0] * len(job.choices)
    async for step in follow(job, reading, tells_end=shape.tells_end):
        choice = job.choices[step.index]
        if step.index not in opened:
            opened.add(step.index)
            if (opening := shape.opening(choice)) is not None:
                yield event({**head, "choices": [opening]})
        for chunk in _chunks(shape, step, choice, offsets):
            yield event({**head, "choices": [chunk]})
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


def _chunks(shape: Shape, step: Step, choice: Choice, offsets: list[int]) -> Iterator[Mapping[str, Any]]:
    pieces, logprobs = choice.text.pieces, None
    if step.entries:
        logprobs = shape.logprobs(step.entries, pieces, offsets[step.index])
        offsets[step.index] += sum(len(pieces.text_of(entry.token_ids[0])) for entry in step.entries)
    parts: Sequence[Part | None] = step.parts or ([None] if step.entries else [])
    for part in parts:
        yield shape.chunk(step.index, part, None, logprobs)
        logprobs = None
    if step.reason is not None:
        yield shape.chunk(step.index, None, step.reason, None)
