"""The ground the API types stand on: frozen models, camelCase names, checked strings, CEL rules.

A bound is written once, beside the field, and lands in three places: the pydantic check here, the OpenAPI schema of
the CRD, and its description. Where OpenAPI can only answer with a regular expression, the check is a CEL rule, so
that `kubectl apply` refuses with a sentence. Forbidden here: I/O, Kubernetes clients, defaults that depend on settings.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

RULES = "x-kubernetes-validations"


class ApiModel(BaseModel):
    """Base of all API types: immutable, unknown keys refused, camelCase outside and snake_case inside."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, protected_namespaces=()
    )


class Reported(ApiModel):
    """Base of what the operator writes itself: a field of another release is passed over, so that the rest is still known."""

    model_config = ConfigDict(extra="ignore")


def rule(expression: str, message: str, **more: Any) -> dict[str, Any]:
    """One CEL rule; `message` is a whole sentence and says the remedy."""
    return {"rule": expression, "message": message, **more}


def text_rule(expression: str, message: str) -> dict[str, Any]:
    """A CEL rule on a string; the sentence ends with the value that was refused."""
    quoted = message.replace("\\", "\\\\").replace("'", "\\'")
    return rule(expression, message, messageExpression=f"'{quoted}, got \"' + self + '\"'")


def rules(*each: dict[str, Any]) -> dict[str, Any]:
    """`json_schema_extra` that carries CEL rules."""
    return {RULES: list(each)}


def _checked(pattern: str, message: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if compiled.fullmatch(value) is None:
            raise ValueError(f"{message}, got {value!r}")
        return value

    return AfterValidator(check)


def _text(pattern: str, message: str, max_length: int) -> tuple[Any, Any]:
    quoted = pattern.replace("\\", "\\\\").replace("'", "\\'")
    expression = f"self.matches('^(?:{quoted})$')"
    return Field(max_length=max_length, json_schema_extra=rules(text_rule(expression, message))), _checked(
        pattern, message
    )


_DURATION = r"([0-9]+h)?([0-9]+m)?([0-9]+s)?"
_DURATION_SOME = "^([0-9]+[hms])+$"
_DURATION_FIELD, _DURATION_CHECK = _text(
    r"([0-9]+h)([0-9]+m)?([0-9]+s)?|([0-9]+m)([0-9]+s)?|[0-9]+s",
    "must be a duration of hours, minutes and seconds such as 30s, 10m or 1h30m",
    16,
)
DURATION_RULES: list[dict[str, Any]] = _DURATION_FIELD.json_schema_extra[RULES]
Duration = Annotated[str, _DURATION_FIELD, _DURATION_CHECK]

_SIZE_FIELD, _SIZE_CHECK = _text(
    r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?", "must be a size such as 512Mi or 4Gi; 0 is none", 32
)
Size = Annotated[str, _SIZE_FIELD, _SIZE_CHECK]

_SHARE_FIELD, _SHARE_CHECK = _text(
    r"0?\.[0-9]*[1-9][0-9]*|1(\.0*)?",
    'must be a share above 0 and up to 1, written as a string such as "0.90" for 90 %',
    16,
)
Share = Annotated[str, _SHARE_FIELD, _SHARE_CHECK]

_POSITIVE_FIELD, _POSITIVE_CHECK = _text(
    r"[0-9]*[1-9][0-9]*(\.[0-9]+)?|[0-9]*\.[0-9]*[1-9][0-9]*",
    'must be a number above 0, written as a string such as "4" or "1.5"',
    16,
)
PositiveNumber = Annotated[str, _POSITIVE_FIELD, _POSITIVE_CHECK]

_SERVED_FIELD, _SERVED_CHECK = _text(
    r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?",
    "must be 1 to 128 letters, digits and . _ : / -, beginning and ending with a letter or digit",
    128,
)
ServedName = Annotated[str, _SERVED_FIELD, _SERVED_CHECK]

_OBJECT_FIELD, _OBJECT_CHECK = _text(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", "must be the name of an object: lower-case letters, digits, - and .", 253
)
ObjectName = Annotated[str, _OBJECT_FIELD, _OBJECT_CHECK]

Quantity = Annotated[int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True})]
"""A Kubernetes quantity; the API server checks it when the pod is made."""


def seconds(duration: str) -> int:
    """`1h30m` to 5400. The text has passed `Duration`."""
    match = re.fullmatch(_DURATION, duration)
    if match is None:
        raise ValueError(f"not a duration: {duration!r}")
    hours, minutes, rest = (int(group[:-1]) if group else 0 for group in match.groups())
    return int(timedelta(hours=hours, minutes=minutes, seconds=rest).total_seconds())


_FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FACTORS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def size_bytes(size: str) -> int:
    """`4Gi` to 4294967296. The text has passed `Size`."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", size)
    if match is None:
        raise ValueError(f"not a size: {size!r}")
    return int(float(match[1]) * _FACTORS[match[2]])


def between(low: str, high: str) -> dict[str, Any]:
    """`json_schema_extra` of a Duration field: it is a duration, and lies between two others, both included."""
    bound = f"duration(self) >= duration('{low}') && duration(self) <= duration('{high}')"
    return rules(
        *DURATION_RULES,
        text_rule(f"!self.matches('{_DURATION_SOME}') || ({bound})", f"must be a duration from {low} to {high}"),
    )
