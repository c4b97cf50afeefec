"""When a write can be saved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_kit import DEFAULTS, owner
from quire_operator.cluster.drift import digest, dropped, marked, matches, settled
from quire_operator.resources import build_deployment, build_pod_template

values = st.recursive(
    st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_everything_matches_itself(value: Any) -> None:
    assert matches(value, value)


@given(st.dictionaries(st.text(max_size=3), values, max_size=4), st.text(min_size=4, max_size=6))
def test_more_in_the_live_object_is_no_drift(wanted: dict[str, Any], extra: str) -> None:
    assert matches(wanted, {**wanted, extra: 1})


@pytest.mark.parametrize(
    ("wanted", "live", "same"),
    [
        ("1000m", "1", True),
        ("1Gi", "1024Mi", True),
        ("0.80", "800m", True),
        ("0.0001", "100u", True),
        ("1024Ti", "1Pi", True),
        (4, "4", True),
        ("4", "5", False),
        ("80", "http", False),
        (True, 1, True),
        ({}, None, True),
        ([], None, True),
        ({"a": 1}, None, False),
        ([1], [1, 2], False),
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, False),
    ],
)
def test_cases(wanted: Any, live: Any, same: bool) -> None:
    assert matches(wanted, live) is same


def test_defaults_of_the_api_server_are_no_drift_and_edits_are() -> None:
    wanted = build_deployment(
        owner({"resources": {"limits": {"cpu": "1000m"}}}), "r", build_pod_template(owner(), DEFAULTS), 1, intent="i"
    )
    live = {**wanted, "status": {"replicas": 1}, "spec": {**wanted["spec"], "minReadySeconds": 0}}
    assert matches(wanted, live)
    live["spec"] = {**live["spec"], "replicas": 3}
    assert not matches(wanted, live)


def test_an_item_of_a_list_is_settled_without_kind_and_a_forgotten_field_is_not() -> None:
    wanted = build_deployment(owner(), "r", build_pod_template(owner(), DEFAULTS), 1, intent="i")
    live = {key: value for key, value in marked(wanted).items() if key not in ("apiVersion", "kind")}
    assert settled(marked(wanted), live)
    shorter = {**wanted, "spec": {key: value for key, value in wanted["spec"].items() if key != "revisionHistoryLimit"}}
    assert not settled(marked(shorter), live), "the field must be given up, so a write is needed"


def test_the_digest_sees_removed_fields() -> None:
    assert digest({"spec": {"a": 1, "b": 2}}) != digest({"spec": {"a": 1}})


@given(st.dictionaries(st.text(max_size=3), values, max_size=4))
def test_nothing_is_dropped_from_what_came_back_whole(wanted: dict[str, Any]) -> None:
    assert dropped(wanted, {**wanted, "more": 1}) is None


def test_what_was_dropped_is_named() -> None:
    wanted = {"spec": {"volumes": [{"name": "a"}, {"name": "model", "image": {"reference": "r"}}], "empty": {}}}
    assert dropped(wanted, {"spec": {"volumes": [{"name": "a"}, {"name": "model"}]}}) == "spec.volumes[1].image"
    assert dropped(wanted, {"spec": {"volumes": []}}) is None, "lists that the server changed are not compared"
