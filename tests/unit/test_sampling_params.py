"""Sampling parameters: bounds, the sentence that names them, and the way over the wire."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine import wire
from quire.errors import RequestError
from quire.request import AddRequest, RequestOutputKind, SamplingParams
from quire.sampling_params import BOUNDS, KINDS
from quire.structured import structured_output

PAGE = Path(__file__).parents[2] / "docs/sampling.md"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("n", 0, "between 1 and 128, got 0"),
        ("n", "two", "between 1 and 128, got 'two'"),
        ("best_of", 129, "between n and 128, got 129"),
        ("temperature", math.nan, "between 0 and 100, got nan"),
        ("temperature", "hot", "got 'hot'"),
        ("top_k", -2, "-1 (off), 0 (off)"),
        ("top_p", 0.0, "above 0 and at most 1, got 0.0"),
        ("min_p", 1.01, "between 0 and 1, got 1.01"),
        ("typical_p", 0.0, "above 0 and at most 1"),
        ("repetition_penalty", 0.0, "above 0"),
        ("repetition_penalty", math.inf, "above 0"),
        ("presence_penalty", 2.1, "between -2 and 2, got 2.1"),
        ("frequency_penalty", -2.1, "between -2 and 2, got -2.1"),
        ("logit_bias", {5: 1e9}, "between -100 and 100, got {5: 1000000000.0}"),
        ("logit_bias", {"abc": 1.0}, "got {'abc': 1.0}"),
        ("logit_bias", {5: math.nan}, "between -100 and 100"),
        ("logit_bias", [5], "got [5]"),
        ("logit_bias", dict.fromkeys(range(2000), 1.0), "at most 1024 token ids"),
        ("allowed_token_ids", [], "not empty, got []"),
        ("allowed_token_ids", [1, "x"], "got [1, 'x']"),
        ("bad_words", ["ok", ""], "non-empty strings"),
        ("seed", 2**63, "a 64-bit integer"),
        ("stop", [""], "non-empty strings"),
        ("stop", ["x"] * 17, "at most 16"),
        ("stop_token_ids", [1.5], "token ids"),
        ("max_tokens", 0, "at least 1, got 0"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 17, "at most max_tokens, which is 16, got 17"),
        ("logprobs", -1, "between 0 and 1024, got -1"),
        ("logprobs", 1025, "between 0 and 1024, got 1025"),
        ("prompt_logprobs", 1025, "between 0 and 1024"),
        ("truncate_prompt_tokens", 0, "-1 or at least 1, got 0"),
        ("bad_words_token_ids", [[]], "at most 2048 lists of 1 to 256 token ids, got [()]"),
        ("bad_words_token_ids", [[1] * 257], "lists of 1 to 256 token ids"),
        ("bad_words_token_ids", [[1]] * 2049, "at most 2048 lists"),
        # the engine reads strictly: what is of another kind must not get there
        ("seed", 1.76e9, "a 64-bit integer, got 1760000000.0"),
        ("max_tokens", 16.0, "an integer, at least 1, got 16.0"),
        ("max_tokens", 2**70, "a 64-bit integer, got 1180591620717411303424"),
        ("min_tokens", 1.5, "an integer, at least 0 and at most max_tokens, got 1.5"),
        ("top_k", 4.0, "-1 (off), 0 (off) or a positive 64-bit integer, got 4.0"),
        ("n", True, "an integer, between 1 and 128, got True"),
        ("temperature", None, "a number, between 0 and 100, got None"),
        ("temperature", "0.5", "a number, between 0 and 100, got '0.5'"),
        ("temperature", 10**400, "between 0 and 100"),
        ("logit_bias", {5: "x"}, "got {5: 'x'}"),
        ("logit_bias", {5: True}, "got {5: True}"),
        ("ignore_eos", "yes", "true or false, got 'yes'"),
        ("detokenize", 1, "true or false, got 1"),
        ("stop", [b"x"], "at most 16 non-empty strings of at most 1024 characters, got [b'x']"),
        ("stop", "\ud800", "at most 16 non-empty strings"),
        ("stop_token_ids", "12", "at most 1024 token ids, got '12'"),
        ("allowed_token_ids", [True], "got [True]"),
        ("structured_outputs", "json", "StructuredOutputsParams(...), got 'json'"),
        ("extra_args", {1: 2}, "an object, got {1: 2}"),
        ("output_kind", 1, "a RequestOutputKind, got 1"),
    ],
)
def test_a_value_out_of_bounds_is_refused_with_field_value_and_bound(field: str, value: Any, words: str) -> None:
    with pytest.raises(RequestError, match=re.escape(words)) as caught:
        SamplingParams(**{field: value})
    assert (caught.value.param, caught.value.code, caught.value.status) == (field, "invalid_value", 400)
    assert str(caught.value).startswith(f"{field} must be ")
    assert len(str(caught.value)) < 300


def test_every_field_has_a_kind() -> None:
    assert list(KINDS) == [field.name for field in msgspec.structs.fields(SamplingParams)]


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 20)
    | st.floats()
    | st.text(st.characters(), max_size=3)
    | st.binary(max_size=2)
    | st.sampled_from(
        [2**70, -(2**63), np.int64(3), np.float32(0.5), np.array([1, 2]), np.bool_(True), 1 + 2j, "\ud800"]
    )
    | st.sampled_from([RequestOutputKind.DELTA, structured_output(regex="a")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.text(max_size=2) | st.floats(), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=5,
)


@settings(max_examples=600, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(set(KINDS) - {"extra_args"})), JUNK, max_size=3))
def test_whatever_is_given_is_refused_by_name_or_read_by_the_engine(fields: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**fields)
    except RequestError as exc:
        assert exc.param in SamplingParams.__struct_fields__ or exc.param == "structured_outputs"
        return
    request = AddRequest(request_id="1", prompt_token_ids=[1], params=params, arrival_s=0.0)
    assert wire.to_engine.decode(wire.encoder.encode(request)) == request


@pytest.mark.parametrize("odd", [-(2**63) - 1, 2**63, 2**70])
@pytest.mark.parametrize(
    ("field", "of"),
    [
        ("stop_token_ids", lambda odd: [1, odd]),
        ("allowed_token_ids", lambda odd: [odd]),
        ("bad_words_token_ids", lambda odd: [[odd, 1]]),
        ("logit_bias", lambda odd: {odd: 1.0}),
        ("logit_bias", lambda odd: {str(odd): 1.0}),
    ],
)
def test_a_token_id_that_does_not_travel_is_refused(field: str, of: Callable[[int], Any], odd: int) -> None:
    with pytest.raises(RequestError, match=field) as refused:
        SamplingParams(**{field: of(odd)})
    assert refused.value.param == field


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_p=np.float64(1),
        seed=np.int64(3),
        stop_token_ids=np.array([1, 2]),
        max_tokens=4,
    )
    assert (params.temperature, params.seed, params.stop_token_ids) == (0.5, 3, (1, 2))
    assert {type(params.temperature), type(params.top_p), type(params.seed)} == {float, int}


def test_none_is_the_empty_list_of_other_engines() -> None:
    assert SamplingParams(stop=None, bad_words=None, stop_token_ids=None, seed=None) == SamplingParams()


def test_fields_that_do_not_go_together() -> None:
    with pytest.raises(RequestError, match="best_of must be at least n, which is 3, got 2"):
        SamplingParams(n=3, best_of=2)
    with pytest.raises(RequestError, match="detokenize is false"):
        SamplingParams(stop="x", detokenize=False)


def test_the_forms_that_programs_use_are_taken() -> None:
    params = SamplingParams(
        stop="ab", bad_words="no", stop_token_ids=[1], allowed_token_ids=[1, 2], logit_bias={"7": 1, 8: -1.5}
    )
    assert (params.stop, params.bad_words) == (("ab",), ("no",))
    assert (params.stop_token_ids, params.allowed_token_ids) == ((1,), (1, 2))
    assert params.logit_bias == {7: 1, 8: -1.5}


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [100]},
        {"allowed_token_ids": [5, -1]},
        {"logit_bias": {999999: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"bad_words_token_ids": ((3, 100),)},
        {"allowed_token_ids": [1] * 101},
    ],
)
def test_token_ids_that_the_model_does_not_have_are_refused(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    with pytest.raises(RequestError) as caught:
        params.check_ids(100)
    name = next(iter(fields)).removesuffix("_token_ids") if "bad_words_token_ids" in fields else next(iter(fields))
    assert caught.value.param == name
    assert "between 0 and 99" in str(caught.value) or "the 100 ids" in str(caught.value)
    SamplingParams(stop_token_ids=[99], allowed_token_ids=[0, 99], logit_bias={99: 1.0}).check_ids(100)


def test_everything_survives_the_wire() -> None:
    params = SamplingParams(
        n=2,
        logit_bias={3: -4.5},
        allowed_token_ids=[1, 3],
        bad_words=["x"],
        bad_words_token_ids=((1, 2), (3,)),
        max_tokens=None,
        prompt_logprobs=0,
        extra_args={"a": [1, {"b": 2}]},
        skip_special_tokens=False,
    )
    request = AddRequest(request_id="1", prompt_token_ids=[1], params=params, arrival_s=0.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=AddRequest).params == params


@pytest.mark.parametrize(("keep", "kept"), [(None, [1, 2, 3, 4]), (2, [3, 4]), (9, [1, 2, 3, 4]), (-1, [2, 3, 4])])
def test_truncated_prompts_keep_their_end(keep: int | None, kept: list[int]) -> None:
    assert SamplingParams(truncate_prompt_tokens=keep, max_tokens=3).truncated([1, 2, 3, 4], 6) == kept


def test_minus_one_keeps_all_but_a_token_where_max_tokens_does_not_fit() -> None:
    for max_tokens in (6, 7, 5000, None):
        params = SamplingParams(truncate_prompt_tokens=-1, max_tokens=max_tokens)
        assert params.truncated([1, 2, 3, 4, 5, 6, 7], 6) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("keep", "kept"), [(None, [1, 2, 3, 4]), (4, [1, 2, 3, 4]), (3, [1, 3, 4]), (2, [1, 4]), (1, [4]), (-1, [1, 3, 4])]
)
def test_a_begin_token_stays(keep: int | None, kept: list[int]) -> None:
    params = SamplingParams(truncate_prompt_tokens=keep, max_tokens=3)
    assert params.truncated([1, 2, 3, 4], 6, begin=1) == kept
    assert params.truncated([2, 3, 4], 6, begin=1) == [2, 3, 4][-(keep if keep and keep > 0 else 3) :]


def test_the_page_has_every_field_with_its_default_and_bound() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE))
    signature = inspect.signature(SamplingParams)
    internal = {"bad_words_token_ids", "output_kind"}
    for name, parameter in signature.parameters.items():
        if name in internal:
            continue
        default, bound = rows[name].split(" | ")[:2]
        assert default == f"`{msgspec.json.encode(parameter.default).decode()}`", name
        assert bound == (BOUNDS[name][0] if name in BOUNDS else "true or false" if default != "`null`" else "an object")
    assert set(rows) >= set(signature.parameters) - internal
