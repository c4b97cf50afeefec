"""What an answer must look like: a JSON schema, any JSON object, a regular expression, one of some texts, a grammar.

`StructuredOutput` travels inside the sampling parameters. Checked here is what is cheap and safe to check anywhere (shape,
size, depth); whether a grammar can be built is found out by `quire.engine.grammar`, away from the step loop.
"""

from __future__ import annotations

import enum
import json as jsonlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import msgspec

from quire.errors import RequestError, shown

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]

MAX_SPEC_BYTES = 1 << 20
"""Nothing larger is looked at; an engine's own limit (`--max-grammar-size`) is at most this."""
MAX_DEPTH = 120
"""Levels of JSON in a schema: the grammar library reads 128, some of which are its own."""
MAX_CHOICES = 10_000
BLANKS_OF_JSON = r"(?: |\n(?: {0,32}|\t{0,8}))?"
"""JSON is written as models and people write it: between two tokens of JSON one space or none, or a line break with at most 32
spaces or 8 tabs of indentation. More would let a model write blanks for ever."""


class Reason(enum.StrEnum):
    """Why a grammar is of no use; `grammar_failures_total{reason}` uses the same words."""

    INVALID = "invalid"
    """It cannot be built."""
    TOO_COMPLEX = "too_complex"
    """It goes beyond a limit, or the library does not survive it."""
    UNAVAILABLE = "unavailable"
    """No grammar can be built here."""
    TIMEOUT = "timeout"
    """Its worker got no CPU for too long."""
    LOST = "lost"
    """Its worker was killed from outside."""
    NO_ROOM = "no_room"
    """The grammars of others leave no memory for it."""

    @property
    def lasting(self) -> bool:
        """Whether it would be the same the next time that the grammar is built."""
        return self in (Reason.INVALID, Reason.TOO_COMPLEX)

    @property
    def of_request(self) -> bool:
        """Whether the request is at fault, and not the engine."""
        return self in (Reason.INVALID, Reason.TOO_COMPLEX, Reason.UNAVAILABLE)


class StructuredOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """kind, and what it is made of as text: `json` a JSON schema, `regex` an expression that the whole answer matches,
    `choice` a JSON list of texts, `grammar` a context-free grammar, EBNF with `::=` or the Lark variant of llguidance, `json_object` nothing.

    param: the field of the request it came from, for messages; two outputs that differ in nothing else are the same grammar.
    Raises RequestError that names it.
    """

    kind: Kind
    spec: str = ""
    param: str = "structured_outputs"

    def __post_init__(self) -> None:
        size = len(self.spec.encode("utf-8", "surrogatepass"))
        if size > MAX_SPEC_BYTES:
            raise self.bad(f"must be at most {MAX_SPEC_BYTES} bytes, got {size}")
        try:
            self.spec.encode("utf-8")
        except UnicodeEncodeError as exc:
            raise self.bad(f"must be valid Unicode, got half of a surrogate pair at character {exc.start}") from None
        if self.kind == "json":
            self._check_schema()
        elif self.kind == "choice":
            self._check_choices()
        elif self.kind != "json_object" and not self.spec:
            raise self.bad("must not be empty")

    @property
    def key(self) -> tuple[str, str]:
        """Equal for outputs that are the same grammar."""
        return self.kind, self.spec

    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that it is; None for other kinds."""
        if self.kind == "json_object":
            return {"type": "object"}
        value = jsonlib.loads(self.spec) if self.kind == "json" else False
        return ({} if value else None) if isinstance(value, bool) else value

    def bad(self, what: str) -> RequestError:
        """The error about this field: `what` follows its name."""
        return RequestError(f"{self.param} {what}", param=self.param, code="invalid_value")

    def _check_schema(self) -> None:
        schema = self._parsed("a JSON schema")
        if not isinstance(schema, dict | bool):
            raise self.bad(f"must be a JSON schema (an object), got {shown(schema)}")
        if (depth := _depth(schema)) > MAX_DEPTH:
            raise self.bad(f"must be at most {MAX_DEPTH} levels deep, got {depth}")

    def _check_choices(self) -> None:
        choices = self._parsed("a list of texts")
        if not isinstance(choices, list) or not all(isinstance(choice, str) and choice for choice in choices):
            raise self.bad(f"must be a list of non-empty texts, got {shown(choices)}")
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise self.bad(f"must be between 1 and {MAX_CHOICES} texts, got {len(choices)}")

    def _parsed(self, what: str) -> Any:
        try:
            return jsonlib.loads(self.spec)
        except RecursionError:
            raise self.bad(f"must be at most {MAX_DEPTH} levels deep") from None
        except ValueError as exc:
            raise self.bad(f"must be {what}: {exc}") from None


def structured_output(
    *,
    json: str | Mapping[str, Any] | bool | None = None,
    regex: str | None = None,
    choice: Sequence[str] | None = None,
    grammar: str | None = None,
    json_object: bool | None = None,
    param: str = "structured_outputs",
) -> StructuredOutput:
    """The one kind of output that is given, from Python values. Raises RequestError that names `param`.

    json: a JSON schema, parsed or as text. regex: matched against the whole answer. choice: the answer is one of these.
    grammar: EBNF whose first rule is `root ::= ...`, or Lark as llguidance reads it. json_object: any JSON object.
    """
    specs: dict[Kind, str] = {}
    if json is not None:
        specs["json"] = json if isinstance(json, str) else _text(json, param)
    if regex is not None:
        specs["regex"] = regex
    if choice is not None:
        specs["choice"] = _text(choice if isinstance(choice, str) else list(choice), param)
    if grammar is not None:
        specs["grammar"] = grammar
    if json_object:
        specs["json_object"] = ""
    if len(specs) != 1:
        got = " and ".join(specs) or "none of them"
        message = f"{param} must be exactly one of json, regex, choice, grammar and json_object, got {got}"
        raise RequestError(message, param=param, code="invalid_value")
    [(kind, spec)] = specs.items()
    if not isinstance(spec, str):
        raise RequestError(f"{param}: {kind} must be a text, got {shown(spec)}", param=param, code="invalid_value")
    return StructuredOutput(kind=kind, spec=spec, param=param)


@dataclass
class StructuredOutputsParams:
    """What the answer must look like, in the names that users of vLLM know: exactly one of the first five.

    json: a JSON schema, parsed or as text. regex: matched against the whole answer. choice: the answer is one of these. grammar:
    as `docs/server.md` says. json_object: any JSON object. The others are refused where they ask for what is not done here.
    Raises RequestError.
    """

    json: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    FIELD: ClassVar[str] = "structured_outputs"

    def __post_init__(self) -> None:
        self.output()

    def output(self) -> StructuredOutput:
        """As it travels; raises RequestError."""
        for name, why in _NOT_HERE.items():
            if getattr(self, name):
                raise RequestError(
                    f"{self.FIELD}.{name} is not supported: {why}",
                    param=self.FIELD,
                    code="unsupported_parameter",
                )
        return structured_output(
            json=self.json,
            regex=self.regex,
            choice=self.choice,
            grammar=self.grammar,
            json_object=self.json_object,
            param=self.FIELD,
        )


@dataclass
class GuidedDecodingParams(StructuredOutputsParams):
    """vLLM's older name. backend: there is one here, whatever is asked for."""

    backend: str | None = None

    FIELD: ClassVar[str] = "guided_decoding"


_NOT_HERE = {
    "disable_any_whitespace": "blanks between the tokens of JSON are the model's choice, up to a bound",
    "disable_additional_properties": "say additionalProperties: false in the schema",
    "whitespace_pattern": "blanks between the tokens of JSON are the model's choice, up to a bound",
    "structural_tag": "give a grammar",
}


def _text(value: object, param: str) -> str:
    """JSON in which equal values are equal texts up to the order of keys, which is the order of an answer's properties."""
    try:
        return jsonlib.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise RequestError(f"{param} must be at most {MAX_DEPTH} levels deep", param=param) from None
    except (TypeError, ValueError) as exc:
        raise RequestError(f"{param} must be JSON: {exc}", param=param, code="invalid_value") from None


def _depth(value: object) -> int:
    deepest, open_values = 0, [(value, 1)]
    while open_values:
        value, depth = open_values.pop()
        deepest = max(deepest, depth)
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        open_values += [(one, depth + 1) for one in inner if isinstance(one, dict | list)]
    return deepest
