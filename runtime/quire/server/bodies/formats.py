"""The fields of a body that say what the answer must look like, in the three spellings that clients use.

OpenAI's `response_format`, vLLM's `structured_outputs`, and its older `guided_*` fields. One of them at most; all end as one
`StructuredOutput` that names its field.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from quire.errors import RequestError
from quire.server.bodies.fields import Body, Checked, Fields
from quire.structured import StructuredOutput, structured_output


class JsonSchema(Fields):
    """`response_format.json_schema`."""

    IGNORED: ClassVar[Mapping[str, str]] = {
        "name": "the answer does not say it",
        "description": "no constraint",
        "strict": "the schema is always kept to the letter",
    }

    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")


class ResponseFormat(Fields):
    """OpenAI's field."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Checked):
    """vLLM's field: exactly one of these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
    json_: dict[str, Any] | bool | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Formats(Body):
    """What completions and chat share."""

    response_format: ResponseFormat | None = Field(None, description="text, json_object, or json_schema with a schema")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="exactly one of json, regex, choice, grammar, json_object"
    )
    guided_json: dict[str, Any] | bool | str | None = Field(None, description="as structured_outputs.json")
    guided_regex: str | None = Field(None, description="as structured_outputs.regex")
    guided_choice: list[str] | None = Field(None, description="as structured_outputs.choice")
    guided_grammar: str | None = Field(None, description="as structured_outputs.grammar")

    def structured_output(self) -> StructuredOutput | None:
        """The output asked for; raises RequestError that names the field."""
        found = [output for output in (self._response_format(), self._structured_outputs()) if output is not None]
        for kind in ("json", "regex", "choice", "grammar"):
            name = f"guided_{kind}"
            value = getattr(self, name)
            if value not in (None, "", False, {}, []):
                found.append(structured_output(**{kind: value}, param=name))
        if len(found) > 1:
            names = " and ".join(output.param for output in found)
            raise RequestError(f"only one of {names} may be given", param=found[-1].param, code="invalid_value")
        return found[0] if found else None

    def _response_format(self) -> StructuredOutput | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        if wanted.type == "json_object":
            return structured_output(json_object=True, param="response_format")
        if wanted.json_schema is None or wanted.json_schema.schema_ is None:
            raise RequestError(
                "response_format.json_schema.schema is required with type json_schema",
                param="response_format",
                code="invalid_value",
            )
        return structured_output(json=wanted.json_schema.schema_, param="response_format")

    def _structured_outputs(self) -> StructuredOutput | None:
        wanted = self.structured_outputs
        if wanted is None:
            return None
        return structured_output(
            json=wanted.json_,
            regex=wanted.regex,
            choice=wanted.choice,
            grammar=wanted.grammar,
            json_object=wanted.json_object,
        )
