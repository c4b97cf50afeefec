"""Prompts and answers pass through the filters of `--filter`, in the order of the flags.

A prompt is refused with 400 `content_filter`; an answer ends with the reason `content_filter`. A filter that fails fails its request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from quire.errors import ConfigError, RequestError
from quire.filters import Answer, Filter, Refused
from quire.text.chat import without_marks

_log = logging.getLogger(__name__)

GROUP = "quire.filters"
BUILT_IN = {"regex": "quire.filters.regex:RegexFilter", "llm-guard": "quire.filters.llm_guard:LlmGuardFilter"}

IDENTIFIERS = frozenset({"role", "type", "id", "tool_call_id"})
"""Fields whose values tie things together: filters read them, and may not change them."""
OWN_ID = re.compile(r"call_[0-9a-f]{24}")
"""Ids of calls that this server makes, which are no words of anybody."""
FIELDS = IDENTIFIERS | {
    "content", "name", "tool_calls", "function", "arguments", "text", "description", "parameters", "strict", "properties",
    "required", "items", "enum", "default", "title", "additionalProperties", "anyOf", "minimum", "maximum", "format",
}  # fmt: skip
"""Names in requests that the formats themselves have; all others are words of the client."""
VALUES = frozenset({
    "system", "developer", "user", "assistant", "tool", "function", "text",
    "object", "array", "string", "number", "integer", "boolean", "null",
})  # fmt: skip
"""Values of identifiers that the formats have."""
IN_LOOP_CHARS = 4000
"""A longer text is read in a thread by any filter."""
TURN_CHARS = 20_000
"""After so many characters of short texts others have their turn; a text counts as `CALL_CHARS` more."""
CALL_CHARS = 100

T = TypeVar("T")


@dataclass(frozen=True)
class Named:
    """A filter and how the flag calls it."""

    name: str
    filter: Filter

    async def run(self, work: Callable[[], T], *, chars: int = 0) -> T:
        """What a call of it gives. chars: of the text it reads. Raises Refused, or RequestError (500) where it fails."""
        try:
            return await asyncio.to_thread(work) if self.filter.is_slow or chars > IN_LOOP_CHARS else work()
        except Refused:
            raise
        except Exception as exc:
            _log.exception("the filter %s failed", self.name)
            raise RequestError(
                f"the filter {self.name} failed; the server's log has the details", code="filter_failed", status=500
            ) from exc


class Filters:
    """All of them."""

    def __init__(self, filters: Sequence[Named]) -> None:
        self._filters = filters
        self._num_chars = 0  # since the event loop had its turn
        self._of_answers = [one for one in filters if one.filter.reads_answers]

    def __bool__(self) -> bool:
        return bool(self._filters)

    @property
    def read_answers(self) -> bool:
        return bool(self._of_answers)

    async def prompt(self, text: str, param: str) -> str:
        """The text to use instead. param: the field it came from. Raises RequestError."""
        if not self._filters:
            return text
        self._num_chars += len(text) + CALL_CHARS
        if self._num_chars > TURN_CHARS:  # a body may have 200 000 texts
            self._num_chars = 0
            await asyncio.sleep(0)
        text = without_marks(text)  # the model does not see them: no filter is to be misled
        for one in self._filters:
            try:
                text = await one.run(lambda one=one, text=text: one.filter.prompt(text), chars=len(text))  # type: ignore[misc]
            except Refused as exc:
                raise RequestError(f"{param} is refused: {exc}", param=param, code="content_filter") from None
        return text

    async def within(self, value: Any, param: str) -> Any:
        """The same with every text in it as the filters leave it. value: as JSON has it. Raises RequestError that names the place.

        Names in objects must pass as they are."""
        match value:
            case str():
                return await self.prompt(value, param)
            case list() | tuple():
                return [await self.within(one, f"{param}.{place}") for place, one in enumerate(value)]
            case dict():
                for name in value.keys() - FIELDS:
                    await self._name(name, param)
                return {name: await self._field(name, one, f"{param}.{name}") for name, one in value.items()}
        return value

    async def _field(self, name: str, value: Any, param: str) -> Any:
        if name in IDENTIFIERS and isinstance(value, str):
            if value not in VALUES and not OWN_ID.fullmatch(value):
                await self._name(value, param)
            return value
        if name == "arguments" and isinstance(value, str):
            return await self._arguments(value, param)
        return await self.within(value, param)

    async def _arguments(self, text: str, param: str) -> str:
        """Arguments of a call are JSON as text, which templates may decode: so its texts pass, not their spelling."""
        try:
            value = json.loads(text)
        except ValueError:
            return await self.prompt(text, param)
        except RecursionError:
            raise RequestError(f"{param} is nested too deeply", param=param, code="invalid_value") from None
        if not isinstance(value, dict):
            return await self.prompt(text, param)
        return json.dumps(await self.within(value, param), ensure_ascii=False)

    async def _name(self, name: str, param: str) -> None:
        """A name in an object, or an identifier, passes or is refused: another one would mean something else."""
        if await self.prompt(name, param) != name:
            raise RequestError(
                f"{param} is refused: a filter would change a name in it", param=param, code="content_filter"
            )

    def answer(self, prompt: Callable[[], str]) -> FilteredAnswer | None:
        """For one answer; None where no filter reads it."""
        return FilteredAnswer(self._of_answers, prompt) if self._of_answers else None


class FilteredAnswer:
    """An answer on its way through the filters."""

    def __init__(self, filters: Sequence[Named], prompt: Callable[[], str]) -> None:
        self._filters = filters
        self._prompt = prompt
        self._answers: list[Answer] = []

    async def push(self, text: str, *, final: bool) -> str:
        """What may be sent. Raises Refused, or RequestError (500) where a filter fails."""
        if not self._answers:
            prompt = self._prompt()
            for one in self._filters:
                self._answers.append(await one.run(lambda one=one: one.filter.answer(prompt)))  # type: ignore[misc]
        for one, answer in zip(self._filters, self._answers, strict=True):
            text = await one.run(lambda answer=answer, text=text: answer.push(text, final=final), chars=len(text))  # type: ignore[misc]
        return text


def load_filters(flags: Sequence[str]) -> Filters:
    """The filters of `--filter NAME` or `--filter NAME=TEXT`; raises ConfigError."""
    return Filters([_load(*flag.partition("=")[::2], flag=flag) for flag in flags])


def _load(name: str, argument: str, *, flag: str) -> Named:
    known = {point.name: point for point in entry_points(group=GROUP)}
    known |= {built: EntryPoint(built, where, GROUP) for built, where in BUILT_IN.items()}
    if name not in known:
        raise ConfigError(
            f"--filter {name}: no installed package has it as entry point of {GROUP}; there are {', '.join(sorted(known))}"
        )
    try:
        module, _, attribute = known[name].value.partition(":")
        made = getattr(import_module(module), attribute)(argument or None)
    except ConfigError:
        raise
    except Exception as exc:  # somebody else's code
        raise ConfigError(f"--filter {flag}: {known[name].value} cannot be loaded: {exc}") from exc
    if not isinstance(made, Filter):
        raise ConfigError(
            f"--filter {flag}: {known[name].value} must give a quire.filters.Filter, got {type(made).__name__}"
        )
    return Named(name, made)
