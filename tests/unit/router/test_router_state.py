"""The pure parts: slices to endpoints, names to models, choice, bodies, events, headers, settings."""

from __future__ import annotations

import json
import logging
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from quire_router import headers, settings
from quire_router.body import model_of, rename
from quire_router.choose import LeastLoaded, LoadTable, choose
from quire_router.endpoints import Endpoint, EndpointState, merge, parse_slice
from quire_router.errors import BadRequestError, SettingsError
from quire_router.registry import Registry
from quire_router.sse import MAX_HELD_BYTES, EventCutter
from quire_router.traffic import Weights, parse_weights
from router_kit import endpointslice, llmadapter, llmdeployment, pod

DICE = random.Random(1)
READY, NOT_READY, TERMINATING = EndpointState.READY, EndpointState.NOT_READY, EndpointState.TERMINATING


# -- endpoints


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({}, READY),  # the API: missing means ready
        ({"ready": True}, READY),
        ({"ready": True, "serving": True, "terminating": False}, READY),
        ({"ready": False}, NOT_READY),
        ({"ready": False, "serving": True, "terminating": True}, TERMINATING),
        ({"ready": True, "terminating": True}, TERMINATING),
    ],
)
def test_conditions_become_one_state(conditions: dict[str, bool], state: EndpointState) -> None:
    view = parse_slice(
        endpointslice("m", {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"name": "p"}})
    )
    assert view is not None
    assert view.endpoints == (Endpoint("10.0.0.1:8000", "p", state),)


def test_two_slices_with_one_pod_give_one_endpoint_in_the_less_favourable_state() -> None:
    older = parse_slice(endpointslice("m", pod("10.0.0.1", "p"), pod("10.0.0.2", "q"), name="a"))
    newer = parse_slice(endpointslice("m", pod("10.0.0.1", "p", ready=False, terminating=True), name="b"))
    assert older is not None and newer is not None
    assert [(e.pod, e.state) for e in merge([older, newer])] == [("p", TERMINATING), ("q", READY)]
    assert merge([older, newer]) == merge([newer, older])


def test_a_dual_stack_pod_is_one_endpoint_by_its_ipv4_address() -> None:
    six = parse_slice(endpointslice("m", pod("fd00::1", "p"), name="a6", family="IPv6"))
    four = parse_slice(endpointslice("m", pod("10.0.0.1", "p"), name="z4"))
    assert six is not None and four is not None
    assert [e.address for e in merge([six, four])] == ["10.0.0.1:8000"]
    assert [e.address for e in merge([six])] == ["[fd00::1]:8000"]


def test_slices_without_a_usable_port_or_label_are_no_endpoints() -> None:
    other = endpointslice("m", pod("10.0.0.1"))
    other["metadata"]["labels"] = {}
    assert parse_slice(other) is None
    assert parse_slice(endpointslice("m", pod("a.example"), family="FQDN")) is None
    view = parse_slice(endpointslice("m", pod("10.0.0.1"), port=None))
    assert view is not None and view.endpoints == ()
    empty = endpointslice("m")
    empty["endpoints"] = None  # what the API server writes for none
    view = parse_slice(empty)
    assert view is not None and view.endpoints == ()


# -- registry


def names(registry: Registry) -> dict[str, str]:
    return {entry.id: entry.deployment.qualified_name for entry in registry.models()}


def test_the_oldest_object_keeps_a_name_and_the_loser_is_reachable(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    with caplog.at_level(logging.WARNING):
        registry.apply_deployment(llmdeployment("a-young", servedName="m", created="2026-02-01T00:00:00Z"))
        registry.apply_deployment(llmdeployment("z-old", servedName="m", created="2026-01-01T00:00:00Z"))
        assert names(registry) == {"m": "demo/z-old", "demo/a-young": "demo/a-young"}
        found = registry.resolve("demo/a-young")
        assert found is not None and found.deployment.name == "a-young"
        # Further events do not repeat the warning.
        registry.apply_deployment(llmdeployment("other"))
        registry.replace_deployments("", [llmdeployment("a-young", servedName="m", created="2026-02-01T00:00:00Z"),
                                          llmdeployment("z-old", servedName="m", created="2026-01-01T00:00:00Z")])  # fmt: skip
    assert [message for message in caplog.messages if "'m'" in message] == [caplog.messages[0]]
    assert "demo/a-young" in caplog.messages[0]
    registry.remove_deployment(llmdeployment("z-old", servedName="m"))
    assert names(registry) == {"m": "demo/a-young"}


def test_a_served_name_cannot_take_the_qualified_name_of_another_object() -> None:
    registry = Registry()
    registry.apply_deployment(llmdeployment("thief", servedName="demo/victim", created="2020-01-01T00:00:00Z"))
    registry.apply_deployment(llmdeployment("victim", created="2026-01-01T00:00:00Z"))
    assert names(registry) == {"demo/thief": "demo/thief", "victim": "demo/victim"}


def test_adapters_are_names_of_their_deployment(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    own = llmdeployment("m", aliases=["small"])
    own["spec"]["adapters"] = [{"name": "legal", "source": "file:///legal"}]
    own["status"] = {"adapters": [{"name": "legal", "loaded": 1, "of": 2}, {"name": "support", "loaded": 0, "of": 2}]}
    registry.apply_adapter(llmadapter("a", "m", servedName="support"))
    assert registry.resolve("support") is None, "its LLMDeployment is not there"
    registry.apply_deployment(own)
    registry.apply_slice(endpointslice("m", pod("10.0.0.1"), pod("10.0.0.2")))
    for name, known_as, adapter in (
        ("m", "m", False), ("small", "small", False), ("demo/m", "m", False), ("legal", "legal", True), ("support", "support", True),
    ):  # fmt: skip
        route = registry.resolve(name)
        assert route is not None and route.deployment.name == "m" and len(route.ready) == 2
        assert (route.known_as, route.adapter) == (known_as, adapter)
    assert [(entry.id, entry.adapter, entry.num_ready) for entry in registry.models()] == [
        ("legal", True, 1), ("m", False, 2), ("small", False, 2), ("support", True, 0),
    ]  # fmt: skip

    with caplog.at_level(logging.WARNING):
        registry.apply_adapter(llmadapter("again", "m", servedName="legal"))
        assert caplog.messages == [], "the pods are the same: whose it is, is the operator's to say"
        registry.apply_deployment(llmdeployment("younger", created="2026-02-01T00:00:00Z", aliases=["legal"]))
        registry.apply_adapter(llmadapter("thief", "younger", servedName="m"))
    assert names(registry)["legal"] == "demo/younger", "models come before adapters"
    assert names(registry)["m"] == "demo/m"
    assert [("'legal'" in each, "'m'" in each, "cannot be asked for" in each) for each in caplog.messages] == [
        (True, False, True), (False, True, True),
    ]  # fmt: skip
    registry.replace_adapters("elsewhere", [])
    assert registry.resolve("support") is not None
    registry.replace_adapters("demo", [])
    assert registry.resolve("support") is None
    registry.apply_adapter(llmadapter("a", "m"))
    assert registry.resolve("a") is not None, "its own name is the default"
    registry.remove_adapter(llmadapter("a", "m"))
    assert registry.resolve("a") is None


def test_endpoints_may_come_before_or_after_their_deployment_and_survive_it() -> None:
    registry = Registry()
    registry.apply_slice(endpointslice("m", pod("10.0.0.1")))
    assert registry.resolve("m") is None
    registry.apply_deployment(llmdeployment("m"))
    route = registry.resolve("m")
    assert route is not None and len(route.ready) == 1
    registry.remove_deployment(llmdeployment("m"))
    assert registry.resolve("m") is None
    assert list(registry.count_endpoints()) == []


def test_a_slice_that_lost_its_label_or_moved_takes_its_endpoints_along() -> None:
    registry = Registry()
    for name in ("a", "b"):
        registry.apply_deployment(llmdeployment(name))
    registry.apply_slice(endpointslice("a", pod("10.0.0.1"), name="s"))
    registry.apply_slice(endpointslice("b", pod("10.0.0.1"), name="s"))
    assert [len(registry.resolve(name).ready) for name in "ab"] == [0, 1]  # type: ignore[union-attr]
    bare = endpointslice("b", pod("10.0.0.1"), name="s")
    bare["metadata"]["labels"] = {}
    registry.apply_slice(bare)
    assert registry.resolve("b").endpoints == ()  # type: ignore[union-attr]


_DEPLOYMENTS = st.builds(
    lambda name, served, aliases, day: llmdeployment(
        name, servedName=served, aliases=aliases, created=f"2026-01-{day:02}T00:00:00Z"
    ),
    st.sampled_from("abc"), st.sampled_from("xyz"), st.lists(st.sampled_from("xyz"), max_size=2), st.integers(1, 5),
)  # fmt: skip
_ENDPOINTS = st.builds(
    lambda number, ready, terminating: pod(f"10.0.0.{number}", f"p{number}", ready=ready, terminating=terminating),
    st.integers(1, 4), st.sampled_from([True, False, None]), st.sampled_from([True, False, None]),
)  # fmt: skip
_SLICES = st.builds(
    lambda owner, name, endpoints: endpointslice(owner, *endpoints, name=name),
    st.sampled_from("abc"), st.sampled_from(["s", "t", "u"]), st.lists(_ENDPOINTS, max_size=3),
)  # fmt: skip
_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["apply", "remove"]), st.just("deployment"), _DEPLOYMENTS),
        st.tuples(st.sampled_from(["apply", "remove"]), st.just("slice"), _SLICES),
    ),
    max_size=25,
)


@given(_EVENTS)
def test_any_history_of_events_ends_where_a_fresh_list_of_the_same_objects_does(
    events: list[tuple[str, str, Any]],
) -> None:
    live, objects = Registry(), {"deployment": {}, "slice": {}}  # type: ignore[var-annotated]
    for action, kind, manifest in events:
        getattr(live, f"{action}_{kind}")(manifest)
        key = manifest["metadata"]["name"]
        if action == "apply":
            objects[kind][key] = manifest
        else:
            objects[kind].pop(key, None)
    fresh = Registry()
    fresh.replace_slices("", objects["slice"].values())
    fresh.replace_deployments("", objects["deployment"].values())
    assert names(live) == names(fresh)
    for name in (*"xyz", *(f"demo/{letter}" for letter in "abc")):
        assert live.resolve(name) == fresh.resolve(name)
        route = live.resolve(name)
        assert route is None or all(endpoint.state is READY for endpoint in route.ready)
    assert list(live.count_endpoints()) == list(fresh.count_endpoints())


# -- choice


def endpoints(*addresses: str) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(address, address, READY) for address in addresses)


def test_the_least_loaded_is_chosen_and_equals_share() -> None:
    load, policy = LoadTable(), LeastLoaded(random.Random(1))
    candidates = endpoints("a", "b", "c")
    with load.request("a"):
        picks = Counter(policy.pick(candidates, load).address for _ in range(400))
    assert set(picks) == {"b", "c"}
    assert min(picks.values()) > 150
    assert load.in_flight("a") == 0


def test_suspects_and_tried_ones_are_avoided_while_there_is_another() -> None:
    load, policy = LoadTable(), LeastLoaded(random.Random(1))
    load.suspect("a", until=10.0)
    both = endpoints("a", "b")
    assert {choose(both, load, policy, tried=(), now=9.0, dice=DICE).address for _ in range(50)} == {"b"}  # type: ignore[union-attr]
    assert choose(both, load, policy, tried={"b"}, now=9.0, dice=DICE).address == "a"  # type: ignore[union-attr]
    assert choose(both, load, policy, tried={"a", "b"}, now=9.0, dice=DICE) is None
    assert {choose(both, load, policy, tried=(), now=10.0, dice=DICE).address for _ in range(50)} == {"a", "b"}  # type: ignore[union-attr]


def test_load_is_given_back_when_a_request_fails() -> None:
    load = LoadTable()
    with pytest.raises(RuntimeError), load.request("a"), load.request("a"):
        assert load.in_flight("a") == 2
        raise RuntimeError
    assert load.in_flight("a") == 0


# -- traffic

ROLLING_OUT = {
    "rollout": {"strategy": "Canary"},
    "revisions": [{"name": "aaa", "weight": 80}, {"name": "bbb", "weight": 20}],
}


def revised(**counts: int) -> list[Endpoint]:
    return [
        Endpoint(f"{revision}-{number}", f"{revision}-{number}", READY, revision)
        for revision, count in counts.items()
        for number in range(count)
    ]


def drawn(
    pool: list[Endpoint], weights: Weights, *, tried: frozenset[str] = frozenset(), rounds: int = 1000
) -> Counter[str]:
    dice = random.Random(7)
    policy, load = LeastLoaded(dice), LoadTable()
    found = (choose(pool, load, policy, tried=tried, now=0.0, weights=weights, dice=dice) for _ in range(rounds))
    return Counter(endpoint.revision for endpoint in found if endpoint is not None)


def test_weights_are_read_only_while_a_strategy_moves_requests() -> None:
    assert parse_weights(ROLLING_OUT) == (("aaa", 80), ("bbb", 20))
    assert parse_weights({**ROLLING_OUT, "rollout": {"strategy": "RollingUpdate"}}) == ()
    assert parse_weights({"revisions": ROLLING_OUT["revisions"]}) == ()
    assert parse_weights({"rollout": {"strategy": "Canary"}, "revisions": [{"name": "aaa", "weight": 0}]}) == ()
    assert parse_weights({}) == ()


def test_a_share_is_a_share_whatever_the_number_of_pods() -> None:
    for pool in (revised(aaa=1, bbb=1), revised(aaa=1, bbb=9), revised(aaa=9, bbb=1)):
        picks = drawn(pool, (("aaa", 80), ("bbb", 20)))
        assert abs(picks["bbb"] - 200) <= 40, picks


def test_a_revision_without_a_share_answers_only_where_no_other_can() -> None:
    weights = (("aaa", 100), ("bbb", 0))
    assert drawn(revised(aaa=1, bbb=5), weights) == {"aaa": 1000}
    assert drawn(revised(bbb=2), weights) == {"bbb": 1000}
    assert drawn(revised(aaa=1, ccc=5), weights) == {"aaa": 1000}, "a revision the status does not name has no share"
    assert drawn(revised(aaa=1, bbb=1), weights, tried=frozenset({"aaa-0"})) == {"bbb": 1000}


def test_the_revision_of_a_pod_is_in_its_name() -> None:
    manifest = endpointslice(
        "my-llm", pod("1.1.1.1", "my-llm-0a1b2c3d-7f9-xyz"), pod("1.1.1.2", "stranger"), pod("1.1.1.3", "my-llm")
    )
    parsed = parse_slice(manifest)
    assert parsed is not None
    assert [endpoint.revision for endpoint in parsed.endpoints] == ["0a1b2c3d", "", ""]


def test_the_registry_follows_the_weights_of_the_status() -> None:
    registry = Registry()
    registry.apply_deployment(llmdeployment("m"))
    assert registry.resolve("m").deployment.weights == ()  # type: ignore[union-attr]
    registry.apply_deployment({**llmdeployment("m"), "status": ROLLING_OUT})
    assert registry.resolve("m").deployment.weights == (("aaa", 80), ("bbb", 20))  # type: ignore[union-attr]


# -- bodies


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), _JSON, max_size=5), st.text(min_size=1), st.text(min_size=1))
def test_model_is_found_and_replaced_in_any_object(fields: dict[str, Any], model: str, other: str) -> None:
    body = json.dumps({**fields, "model": model}).encode()
    assert model_of(body) == model
    renamed = json.loads(rename(body, other))
    assert renamed == {**fields, "model": other}


@given(st.binary(max_size=64))
def test_any_bytes_give_a_model_or_a_bad_request(raw: bytes) -> None:
    try:
        assert model_of(raw)
    except BadRequestError as error:
        assert error.status == 400


def test_a_body_nested_without_end_is_refused() -> None:
    with pytest.raises(BadRequestError):
        model_of(b'{"x":' + b"[" * 200_000)


# -- events


@given(st.lists(st.text(alphabet="abc:\n", max_size=12), max_size=8), st.integers(1, 7))
def test_events_are_cut_at_their_ends_and_no_byte_is_lost(texts: list[str], size: int) -> None:
    data = "\n\n".join(texts).encode()
    cutter = EventCutter()
    out = []
    for begin in range(0, len(data), size):
        piece = cutter.push(data[begin : begin + size])
        assert piece == b"" or piece.endswith(b"\n\n")
        out.append(piece)
    assert b"".join([*out, cutter.rest()]) == data


def test_an_event_with_carriage_returns_is_complete_and_a_huge_one_passes() -> None:
    cutter = EventCutter()
    assert cutter.push(b"data: 1\r\n\r\ndata: 2") == b"data: 1\r\n\r\n"
    assert cutter.push(b"x" * (MAX_HELD_BYTES + 1)) == b"data: 2" + b"x" * (MAX_HELD_BYTES + 1)
    assert cutter.rest() == b""


# -- headers


def test_forwarded_addresses_add_up() -> None:
    given_ = CIMultiDictProxy(CIMultiDict([("X-Forwarded-For", "1.1.1.1"), ("Host", "x"), ("Expect", "100-continue")]))
    sent = headers.to_upstream(given_, request_id="r", remote="2.2.2.2")
    assert dict(sent) == {"X-Forwarded-For": "1.1.1.1, 2.2.2.2", "X-Request-Id": "r"}


# -- settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_ROUTER_WATCH_NAMESPACES", " a, b ,,a")
    monkeypatch.setenv("QUIRE_ROUTER_LOG_LEVEL", "debug")
    loaded = settings.load()
    assert loaded.watch_namespaces == ("a", "b")
    assert loaded.log_level == "DEBUG"
    assert loaded.port == 8080


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "70000"), ("MAX_ATTEMPTS", "none"), ("LOG_FORMAT", "xml"), ("DRAIN_TIMEOUT_S", "-1")]
)
def test_a_bad_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"QUIRE_ROUTER_{name}", value)
    with pytest.raises(SettingsError, match=f"QUIRE_ROUTER_{name} is '{value}'"):
        settings.load()
