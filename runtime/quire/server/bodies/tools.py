"""Functions that a model may call, as the bodies of all endpoints give them, checked; and what follows for prompt, grammar and reader."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from quire.errors import RequestError, shown
from quire.outputs.calls.formats import AUTO, FORMATS, NONE, CallFormat, detected
from quire.outputs.calls.grammar import answer_grammar
from quire.outputs.reader import Reading
from quire.outputs.reasoning import begins_inside
from quire.server.bodies.fields import Fields, bad
from quire.server.flight.frontend import Frontend
from quire.structured import StructuredOutput, structured_output
from quire.text.tool_use import habits_of

MAX_TOOLS = 512
MAX_TOOLS_CHARS = 1 << 20
"""All together, as JSON."""
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

Mode = Literal["none", "auto", "required"]


class Function(Fields):
    """A function as OpenAI describes it. `strict` changes nothing: where a call is forced its schema is always kept."""

    PASSED_ON: ClassVar[bool] = True

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Fields):
    """`tools[]` of chat."""

    type: str
    function: Function | None = None


class Named(Fields):
    """The function inside of a choice."""

    name: str


class AllowedTool(Fields):
    """One of those that may be called."""

    type: str
    function: Named | None = None


class AllowedTools(Fields):
    """The functions that may be called, of those that are offered."""

    mode: Literal["auto", "required"]
    tools: list[AllowedTool]

    def names(self) -> list[str]:
        """Raises RequestError for an entry that names no function."""
        found: list[str] = []
        for index, tool in enumerate(self.tools):
            if tool.function is None:
                raise bad(
                    f"tool_choice.allowed_tools.tools.{index}.function",
                    "is required, as only functions can be called here",
                )
            found.append(tool.function.name)
        return found


class ToolChoice(Fields):
    """`tool_choice` of chat, where it is an object."""

    type: Literal["function", "allowed_tools"]
    function: Named | None = None
    allowed_tools: AllowedTools | None = None

    def read(self) -> tuple[Mode, list[str]]:
        """Whether there must be a call, and of which functions. Raises RequestError."""
        if self.type == "function" and self.function is not None:
            return "required", [self.function.name]
        if self.type == "allowed_tools" and self.allowed_tools is not None:
            return self.allowed_tools.mode, self.allowed_tools.names()
        raise RequestError(f"tool_choice needs {self.type}", param="tool_choice", code="invalid_value")


@dataclass(frozen=True)
class Tools:
    """What is offered and may be called.

    offered: as chat templates want them. functions: a schema of the arguments, by name, of those that may be called. mode: whether there
    may be calls, or must. parallel: more than one.
    """

    offered: Sequence[Mapping[str, Any]] = ()
    functions: Mapping[str, Any] | None = None
    mode: Mode = "none"
    parallel: bool = True

    @property
    def callable(self) -> Mapping[str, Any]:
        """The functions that may be called."""
        return (self.functions or {}) if self.mode != "none" else {}


def checked_tools(
    functions: Sequence[Function],
    mode: Mode | None,
    names: Sequence[str] | None,
    *,
    parallel: bool | None,
    schema_field: str = "function.parameters",
) -> Tools:
    """Tools of a request; mode and names: the choice, None where there is none. Raises RequestError that names the field.

    schema_field: where a tool has its schema, for messages.
    """
    if names is not None and not names:
        raise bad("tool_choice", "must allow at least one function; none forbids calls")
    if not functions:
        if mode == "required":
            raise RequestError("tool_choice asks for a call, but there are no tools", param="tool_choice")
        return Tools()
    if len(functions) > MAX_TOOLS:
        raise bad("tools", f"must be at most {MAX_TOOLS} functions, got {len(functions)}")
    offered = [{"type": "function", "function": one.model_dump(exclude_unset=True)} for one in functions]
    if (size := len(json.dumps(offered))) > MAX_TOOLS_CHARS:
        raise bad("tools", f"must be at most {MAX_TOOLS_CHARS} characters of JSON, got {size}")
    schemas: dict[str, Any] = {}
    for index, function in enumerate(functions):
        if _NAME.fullmatch(function.name) is None:
            what = f"must be 1 to 128 letters, digits and _ - . : /, got {shown(function.name)}"
            raise bad(f"tools.{index}.{schema_field.rpartition('.')[0]}.name".replace("..", "."), what)
        if function.name in schemas:
            raise bad("tools", f"must have different names, got {function.name!r} twice")
        schemas[function.name] = _schema(function, f"tools.{index}.{schema_field}")
    if mode == "none":
        return Tools()  # out of the prompt too: then the model cannot be tempted
    for name in names or ():
        if name not in schemas:
            raise bad("tool_choice", f"must name one of the tools, got {shown(name)}")
    chosen = schemas if not names else {name: schemas[name] for name in names}
    one_named = mode == "required" and names is not None and len(names) == 1
    return Tools(offered, chosen, mode or "auto", (parallel is not False) and not one_named)


def _schema(function: Function, where: str) -> dict[str, Any]:
    """The schema of the arguments, which are an object."""
    schema = function.parameters
    if not schema:
        return _NO_PARAMETERS
    structured_output(json=schema, param=where)
    kind = schema.get("type", "object")
    if kind != "object":
        raise bad(where, f"must describe an object, got type {shown(kind)}")
    return {"type": "object", **schema}


def call_format(frontend: Frontend) -> CallFormat:
    """The format of this model's calls; raises RequestError where it has none."""
    wanted, chat = frontend.config.tool_call_parser, frontend.tokenizer.chat
    if wanted not in (AUTO, NONE):
        return FORMATS[wanted]
    if wanted == AUTO:
        if not habits_of(chat).tools:
            return FORMATS["hermes"]
        name = detected(chat.source(tools=True))
        if name is not None:
            return FORMATS[name]
    why = "are turned off here" if wanted == NONE else f"of {frontend.names[0]} are in a format that is not known"
    raise RequestError(
        f"tools are not supported: calls {why} (--tool-call-parser is {wanted})",
        param="tools",
        code="unsupported_parameter",
    )


def reading_of(frontend: Frontend, tools: Tools, prompt_end: str) -> Reading:
    """How the answers to a prompt are read. prompt_end: its last characters."""
    tokenizer = frontend.tokenizer
    reasons = begins_inside(prompt_end, tokenizer.chat.source(), frontend.config.reasoning_parser)
    if not tools.callable:
        return Reading(reasons)
    found = call_format(frontend)
    specials = [tokenizer.special_id(mark) for mark in found.spelling.specials]
    return Reading(
        reasons,
        found.parser,
        tools.callable,
        one_call=not tools.parallel,
        specials=frozenset(one for one in specials if one is not None),
    )


def constraint(
    frontend: Frontend, tools: Tools, wanted: StructuredOutput | None, reading: Reading
) -> tuple[StructuredOutput | None, Reading]:
    """The grammar of the answers where calls are forced, an answer must be of some form, or both; and how answers are read with it.

    wanted: what the body asks for besides. Raises RequestError for what does not go together.
    """
    forced = tools.mode == "required"
    if wanted is not None and forced:
        raise RequestError(
            f"{wanted.param} is not possible where tool_choice forces a call", param=wanted.param, code="invalid_value"
        )
    if not forced and (wanted is None or not (tools.callable or reading.reasons)):
        return wanted, reading if wanted is None else Reading(None, reading.parser, reading.functions)
    instead = None if wanted is None else wanted.schema()
    if wanted is not None and instead is None:
        if not tools.callable:  # the answer is the structure, from its first token on
            return wanted, Reading(None)
        raise RequestError(
            f"{wanted.param} together with tools must be a JSON schema or any JSON object",
            param=wanted.param,
            code="invalid_value",
        )
    spelling = call_format(frontend).spelling if tools.callable else None
    thinks = bool(reading.reasons)
    lark = answer_grammar(
        spelling,
        tools.callable,
        parallel=tools.parallel,
        special_id=frontend.tokenizer.special_id,
        thinks=thinks,
        instead=instead,
    )
    param = wanted.param if wanted is not None else "tools"
    read = Reading(reading.reasons or None, reading.parser, reading.functions, reading.one_call, reading.specials)
    return StructuredOutput(kind="grammar", spec=lark, param=param), read
