"""`quire.structured`: what is checked of an output before any grammar is built."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from quire import SamplingParams, StructuredOutputsParams
from quire.errors import RequestError
from quire.structured import MAX_CHOICES, MAX_DEPTH, MAX_SPEC_BYTES, StructuredOutput, structured_output


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "exactly one of json, regex, choice, grammar and json_object, got none of them"),
        ({"regex": "a", "choice": ["b"]}, "got regex and choice"),
        ({"json": "{"}, "must be a JSON schema: Expecting"),
        ({"json": "[1]"}, r"must be a JSON schema \(an object\), got \[1\]"),
        ({"json": {"a": {1, 2}}}, "must be JSON"),
        ({"json": nested(MAX_DEPTH + 1)}, f"at most {MAX_DEPTH} levels deep, got {MAX_DEPTH + 1}"),
        ({"json": '{"a":' * 100_000}, "must be"),
        ({"json": {"enum": ["x" * MAX_SPEC_BYTES]}}, f"at most {MAX_SPEC_BYTES} bytes"),
        ({"choice": []}, f"between 1 and {MAX_CHOICES} texts, got 0"),
        ({"choice": ["a", ""]}, "must be a list of non-empty texts"),
        ({"choice": "abc"}, "must be a list of non-empty texts, got 'abc'"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, f"between 1 and {MAX_CHOICES} texts"),
        ({"regex": ""}, "must not be empty"),
        ({"regex": 7}, "regex must be a text, got 7"),
        ({"grammar": ""}, "must not be empty"),
        ({"regex": "\ud800"}, "half of a surrogate pair"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_output_names_the_field_and_the_bound(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        structured_output(**fields, param="guided")
    assert caught.value.param == "guided"
    assert "guided" in str(caught.value)


def test_schemas_as_values_and_as_text_are_the_same_and_keep_the_order_of_properties() -> None:
    schema = {"properties": {"b": {}, "a": {"const": "ü"}}}
    output = structured_output(json=schema)
    assert output == structured_output(json=json.dumps(schema, ensure_ascii=False, separators=(",", ":")))
    assert list(json.loads(output.spec)["properties"]) == ["b", "a"]
    assert structured_output(json=nested(MAX_DEPTH)).kind == "json"


def test_the_field_it_came_from_does_not_make_another_grammar() -> None:
    one, other = structured_output(regex="a", param="guided_regex"), structured_output(regex="a")
    assert one.key == other.key
    assert one.key != structured_output(grammar="a").key


def test_it_travels_inside_the_sampling_parameters() -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "nein ä"]))
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert again == params
    assert again.structured_outputs == StructuredOutput(kind="choice", spec='["yes","nein ä"]')
