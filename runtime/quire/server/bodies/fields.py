"""What becomes of the fields of a body: the declaration that the parser follows and docs/fields.md is made of.

A field is one of four: *used* (a field of the model), *ignored* (accepted, without effect; `IGNORED`), *refused* (400 unless its value asks
for nothing; `REFUSED`), or unknown: accepted, and named in the header `x-quire-ignored-fields`. Types are strict: a number in quotes is a
bad value.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError

from quire.errors import RequestError, shown

MOST_NAMED = 16
"""Unknown fields that are named at most."""


@dataclass(frozen=True)
class Refused:
    """An effect that is not to be had. neutral: the values that ask for nothing, None (or absence) among them. instead: what to do instead."""

    neutral: tuple[object, ...] = (None,)
    instead: str = ""

    def asks(self, value: object) -> bool:
        """Whether a value asks for it."""
        return not any(value == one and type(value) is type(one) for one in self.neutral)

    def message(self, name: str, value: object) -> str:
        taken = " or ".join(json.dumps(one) for one in self.neutral if one is not None)
        refused = f"{name} is not supported here" + (f" beyond {taken}" if taken else "") + f", got {shown(value)}"
        return "; ".join(filter(None, [refused, self.instead]))


def _stop_at_first(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        schema = schema.values()
    elif not isinstance(schema, list | tuple):
        return
    for part in schema:
        _stop_at_first(part)


class Checked(BaseModel):
    """An object whose lists are looked at up to their first bad item: nobody reads the errors of the other 999 999, and making them holds
    up everybody (4 s)."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        _stop_at_first(schema)
        return schema


def few(most: int) -> BeforeValidator:
    """For objects of names to values, in which each bad value is an error: more than so many are one."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise PydanticCustomError("too_many", "input should have at most {most} entries", {"most": most})
        return value

    return BeforeValidator(check)


class Fields(Checked):
    """An object of a request. PASSED_ON: nothing of it is unknown, since OTHERS is what becomes of what it holds beyond its fields."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, protected_namespaces=())
    REFUSED: ClassVar[Mapping[str, Refused]] = {}
    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Name to the reason."""
    PASSED_ON: ClassVar[bool] = False
    OTHERS: ClassVar[str] = "reach the chat template as they are"

    def refuse(self, where: str = "") -> None:
        """Raises RequestError for a field, here or in an object inside, whose effect is not to be had. where: this object's place."""
        for name, refused in self.REFUSED.items():
            value = self._given(name)
            if refused.asks(value):
                place = f"{where}{name}"
                raise RequestError(refused.message(place, value), param=place, code="unsupported_parameter")
        for place, inner in self._inner():
            inner.refuse(f"{where}{place}.")

    def unknown_fields(self, where: str = "") -> Iterator[str]:
        """Names, with their place, of fields that nobody knows, here and in objects inside."""
        if not self.PASSED_ON:
            for name in self.model_extra or ():
                if name not in self.REFUSED and name not in self.IGNORED:
                    yield f"{where}{name}"
        for place, inner in self._inner():
            yield from inner.unknown_fields(f"{where}{place}.")

    def _given(self, name: str) -> object:
        return getattr(self, name) if name in type(self).model_fields else (self.model_extra or {}).get(name)

    def _inner(self) -> Iterator[tuple[str, Fields]]:
        """The objects inside and their places. Of lists whose items are passed on, none: there may be many."""
        given = self.model_fields_set  # unknown ones too, which may be a hundred thousand
        for name in type(self).model_fields:
            value = getattr(self, name) if name in given else None
            if isinstance(value, Fields):
                yield name, value
            elif isinstance(value, list) and value and isinstance(value[0], Fields) and not value[0].PASSED_ON:
                for place, one in enumerate(value):
                    yield f"{name}.{place}", one


class Body(Fields):
    """A whole body. PROMPT_FIELD: where the prompt is, for errors."""

    PROMPT_FIELD: ClassVar[str] = "prompt"


def bad(param: str, what: str, *, code: str = "invalid_value") -> RequestError:
    """The error for a field; what: what it must be, in words that follow its name."""
    return RequestError(f"{param} {what}", param=param, code=code)


def text_in(item: Mapping[str, Any], name: str, where: str) -> str:
    """A text in an object at a place; raises RequestError."""
    value = item.get(name)
    if not isinstance(value, str):
        raise bad(f"{where}.{name}", f"must be a text, got {shown(value)}")
    return value
