"""Sampling parameters as programs written for vLLM make and change them."""

from __future__ import annotations

import pytest

from quire import (
    EngineArgs,
    GuidedDecodingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from quire.errors import RequestError


def test_defaults_are_those_users_know() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens) == (1, 1.0, 1.0, 0, 16)
    assert params.seed is None
    assert params.output_kind is RequestOutputKind.CUMULATIVE


def test_none_keeps_a_default() -> None:
    assert SamplingParams.from_optional(temperature=0.5, top_p=None, max_tokens=None) == SamplingParams(temperature=0.5)


def test_fields_may_be_set_and_are_checked_when_taken() -> None:
    params = SamplingParams()
    copy = params.clone()
    params.max_tokens = 100
    params.temperature = 0.0
    assert (params.clone().max_tokens, params.greedy) == (100, True)
    assert copy == SamplingParams()
    params.top_p = 1.5
    with pytest.raises(RequestError, match="top_p must be above 0 and at most 1"):
        params.clone()


def test_guided_decoding_is_the_older_name_of_structured_outputs() -> None:
    guided = SamplingParams(guided_decoding=GuidedDecodingParams(choice=["a", "b"], backend="xgrammar"))
    assert guided.guided_decoding is None
    assert guided.structured_outputs is not None
    assert guided.structured_outputs.key == StructuredOutputsParams(choice=["a", "b"]).output().key
    assert guided.clone() == guided
    with pytest.raises(RequestError, match="guided_decoding must be exactly one of json, regex, choice"):
        GuidedDecodingParams(backend="auto")
    both = {
        "guided_decoding": GuidedDecodingParams(regex="a"),
        "structured_outputs": StructuredOutputsParams(regex="a"),
    }
    with pytest.raises(RequestError, match="guided_decoding must be absent together with structured_outputs"):
        SamplingParams(**both)


def test_structured_outputs_are_a_class_with_the_fields_users_know() -> None:
    wanted = StructuredOutputsParams(choice=["a", "b"])
    assert isinstance(wanted, StructuredOutputsParams) and wanted.choice == ["a", "b"]
    assert isinstance(GuidedDecodingParams(regex="a", whitespace_pattern=None), StructuredOutputsParams)
    params = SamplingParams(structured_outputs=wanted)  # type: ignore[arg-type]
    assert params == SamplingParams(structured_outputs={"choice": ["a", "b"]})  # type: ignore[arg-type]
    params.structured_outputs = StructuredOutputsParams(regex="x")  # type: ignore[assignment]
    clone = params.clone().structured_outputs
    assert clone is not None and (clone.kind, clone.spec) == ("regex", "x")
    for fields in ({"whitespace_pattern": " "}, {"disable_any_whitespace": True}, {"structural_tag": "{}"}):
        with pytest.raises(RequestError, match=f"structured_outputs.{next(iter(fields))} is not supported: "):
            StructuredOutputsParams(json={}, **fields)  # type: ignore[arg-type]
    with pytest.raises(
        RequestError, match=r"structured_outputs must be StructuredOutputsParams\(...\), got {'schema': 1}"
    ):
        SamplingParams(structured_outputs={"schema": 1})  # type: ignore[arg-type]


def test_errors_are_the_ones_that_programs_catch() -> None:
    with pytest.raises(ValueError, match="temperature must be"):
        SamplingParams(temperature=-1)
    with pytest.raises(ValueError, match="there is no engine argument"):
        EngineArgs(no_such_name=1)
    assert RequestOutput("a", None, []).metrics is None
