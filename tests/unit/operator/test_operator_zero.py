"""To zero and back: the policy in simulated time, what is remembered in between, and the reconcile loop that acts on it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import aiohttp
import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from operator_kit import KEY, body
from quire_operator.cluster import Cluster, router_addresses
from quire_operator.policy.zero import (
    FRESH_S,
    MOST_GAP_S,
    Quiet,
    Sighting,
    Stance,
    asked,
    by_pod,
    change_of,
    move,
    next_quiet,
)
from quire_operator.probe import Demand, Samples
from quire_operator.probe.demand import TELL_AGAIN_S, Answers
from quire_operator.probe.routers import CAME, HELD, Asked, ask_router, read_page
from quire_operator.probe.samples import IN_FLIGHT, SERVED, Target
from quire_operator.spec import Key, parse
from reconcile_bench import Bench
from router_kit import eventually, running
from scripted_api import scripted_api

IDLE_S = 60.0
ONE = Stance(1, IDLE_S, at_rest=True, pods=frozenset({"p"}))
ZERO = Stance(0, IDLE_S, at_rest=True)
STILL = Sighting({"r": 3.0, by_pod("p"): 2.0})


def quiet_after(*seen: tuple[float, Sighting], stance: Stance = ONE, start: float = 100.0) -> Quiet | None:
    """Seen one after the other, each so many seconds after the one before."""
    quiet, now = None, start
    for wait, each in seen:
        now += wait
        quiet = next_quiet(quiet, each, stance, now=now)
    return quiet


# -- the policy


def test_a_span_without_any_request_ends_with_zero() -> None:
    quiet = quiet_after((0, STILL), *[(10, STILL)] * 6)
    assert quiet is not None and (quiet.since, quiet.known) == (100, 160)
    assert move(ONE, quiet, wanted=False, now=160) == 0
    assert move(ONE, replace(quiet, known=159), wanted=False, now=160) is None, "one second is missing"


@pytest.mark.parametrize(
    "other",
    [
        Sighting(None, busy=1),
        replace(STILL, busy=1),
        Sighting({"r": 4.0, by_pod("p"): 2.0}),
        Sighting({"r": 3.0, by_pod("p"): 3.0}),
        Sighting({"r": 0.0, by_pod("p"): 2.0}),
        Sighting({"r": 3.0, by_pod("p"): 2.0, "new": 1.0}),
    ],
    ids=[
        "unknown and busy",
        "busy",
        "asked",
        "asked beside the router",
        "another process",
        "another router",
    ],
)
def test_whatever_happens_begins_the_span_anew(other: Sighting) -> None:
    before = [(0.0, STILL), *[(10.0, STILL)] * 5]
    quiet = quiet_after(*before, (10.0, other))
    assert quiet is None or quiet.since == 160
    assert move(ONE, quiet, wanted=False, now=160) is None
    after = quiet_after(*before, (10.0, other), *[(10.0, STILL)] * 5)
    assert after is not None and after.since >= 160


def test_who_is_gone_was_idle_and_who_is_new_and_idle_changes_nothing() -> None:
    quiet = quiet_after((0, STILL), (10, Sighting({"other": 0.0, by_pod("p"): 2.0})), (10, STILL))
    assert quiet is not None and quiet.since == 120, "the first one is back, and nobody knows what it did meanwhile"
    quiet = quiet_after((0, STILL), (10, Sighting({"other": 0.0, by_pod("p"): 2.0})))
    assert quiet is not None and quiet.since == 100


@pytest.mark.parametrize("silent", [[], [(6.0, Sighting(None))] * 2], ids=["nobody looked", "somebody did not answer"])
def test_what_is_not_known_for_long_begins_the_span_anew(silent: list[tuple[float, Sighting]]) -> None:
    rest = MOST_GAP_S - sum(wait for wait, _ in silent)
    quiet = quiet_after((0, STILL), *silent, (rest, STILL))
    assert quiet is not None and (quiet.since, quiet.known) == (100, 100 + MOST_GAP_S), "for a moment it may be"
    quiet = quiet_after((0, STILL), *silent, (rest + 1, STILL))
    assert quiet is not None and quiet.since == 101 + MOST_GAP_S
    assert quiet_after((0, STILL), *silent, (rest + 1, Sighting(None))) is None
    quiet = quiet_after((0, STILL), *silent, (rest, Sighting({"r": 4.0, by_pod("p"): 2.0})))
    assert quiet is not None and quiet.since == 100 + MOST_GAP_S, "who came meanwhile was counted"


def test_a_replica_goes_only_for_what_was_known_just_now() -> None:
    long = Quiet(0, 1000, STILL.came or {})
    assert move(ONE, long, wanted=False, now=1000 + FRESH_S) == 0
    assert move(ONE, long, wanted=False, now=1001 + FRESH_S) is None


@pytest.mark.parametrize(
    "stance",
    [
        replace(ONE, replicas=2),
        replace(ONE, at_rest=False),
        replace(ONE, pods=frozenset()),
        replace(ONE, pods=frozenset({"q"})),
        ZERO,
    ],
    ids=["the autoscaler's", "moving", "no pod", "another pod", "at zero"],
)
def test_only_a_single_replica_at_rest_that_was_watched_goes(stance: Stance) -> None:
    long = Quiet(0, 1000, STILL.came or {})
    assert move(ONE, long, wanted=False, now=1000) == 0
    assert move(stance, long, wanted=False, now=1000) is None


@pytest.mark.parametrize("stance", [ZERO, replace(ONE, at_rest=False), replace(ONE, pods=frozenset())])
def test_nothing_is_quiet_at_zero_nor_while_something_moves(stance: Stance) -> None:
    assert quiet_after((0, STILL), (5, STILL), stance=stance) is None


def test_who_waits_or_came_wakes_it_and_a_router_met_for_the_first_time_does_not() -> None:
    assert asked({}, {}, held=1)
    assert asked({"r": 3}, {"r": 4}, held=0)
    assert not asked({"r": 3}, {"r": 3}, held=0)
    assert not asked({"r": 3}, {"s": 9}, held=0)
    assert not asked({"r": 3}, {"r": 0}, held=0)
    assert move(ZERO, None, wanted=True, now=0) == 1
    assert move(ZERO, None, wanted=False, now=0) is None
    assert move(ONE, None, wanted=True, now=0) is None


LOOKS = st.lists(
    st.tuples(
        st.floats(0.1, 40.0),
        st.sampled_from(["still", "still", "still", "came", "held", "runs", "silent router", "silent pod", "moves"]),
    ),
    min_size=1,
    max_size=60,
)


@given(LOOKS)
def test_never_to_zero_within_the_span_after_anything_that_is_no_silence(looks: list[tuple[float, str]]) -> None:
    """Whatever the order: between the last sign of life, or of not knowing, and the move lies the whole span, looked at all the time."""
    quiet: Quiet | None = None
    now, known, last, count = 0.0, 0.0, 0.0, 0.0
    for wait, what in looks:
        now += wait
        silent = what.startswith("silent")
        if (what != "still" and not silent) or now - known > MOST_GAP_S:
            last = now
        known = known if silent else now
        count += what == "came"
        came = None if silent else {"r": count, by_pod("p"): 0.0}
        stance = replace(ONE, at_rest=what != "moves")
        quiet = next_quiet(quiet, Sighting(came, busy=what in ("held", "runs")), stance, now=now)
        if move(stance, quiet, wanted=False, now=now) == 0:
            assert now - known <= FRESH_S and what not in ("came", "held", "runs", "moves")
            assert known - last >= IDLE_S - 1e-6
        elif what == "still":
            assert now - last < IDLE_S + 2 * MOST_GAP_S + 40, "quiet for long, and it stays"


# -- what of spec.replicas is the operator's


def scaling(least: int = 0, **more: Any) -> dict[str, Any]:
    return {"minReplicas": least, "maxReplicas": 3, "targets": {"queueSize": "4"}, **more}


def test_the_first_value_is_one_where_it_may_go_to_zero() -> None:
    change = change_of(parse(body({"autoscaling": scaling()})), None)
    assert change is not None and (change.replicas, change.reason) == (1, None)
    change = change_of(parse(body({"autoscaling": scaling(2)})), None)
    assert change is not None and change.replicas == 2


@pytest.mark.parametrize(
    ("spec", "asleep", "replicas"),
    [
        ({"autoscaling": scaling(2), "replicas": 0}, True, 2),
        ({"autoscaling": scaling(2), "replicas": 0}, False, None),
        ({"autoscaling": scaling(2), "replicas": 1}, True, None),
        ({"autoscaling": scaling(0), "replicas": 0}, True, None),
        ({"replicas": 0}, True, None),
    ],
    ids=["raised", "scaled by hand", "up already", "asleep", "no autoscaler"],
)
def test_one_that_sleeps_rises_when_it_may_no_longer(spec: dict[str, Any], asleep: bool, replicas: int | None) -> None:
    status = {"autoscaling": {"asleep": True} if asleep else {}}
    change = change_of(parse(body(spec, status=status)), None)
    assert (change.replicas if change is not None else None) == replicas


# -- routers' pages


def test_of_a_router_s_page_only_what_it_knows_wholly_counts() -> None:
    page = (
        f'{CAME}{{namespace="a",deployment="m"}} 3.0\n{HELD}{{namespace="a",deployment="m"}} 1.0\n'
        f'{CAME}{{namespace="a",deployment="half"}} 3.0\n'
        'quire_router_requests_held_up{namespace="a",deployment="x"} 1.0\nquire_router_endpoints{x="{"} 1\n'
    )
    assert read_page(page) == {Key("a", "m"): Asked(3, 1)}
    assert read_page("quire_router_requests_total 5\n") == {}, "a router of an older release"
    with pytest.raises(ValueError):
        read_page(f"{CAME}{{namespace= 3\n")


# -- the loop


class Sleeper:
    """An LLMDeployment that may go to zero, its pods and two routers; `pass_s` lets time go by, looked at every 2 s."""

    def __init__(self, **scale_down: str) -> None:
        self.bench = Bench({"autoscaling": scaling(scaleDown={"idleAfter": "1m", **scale_down})})
        self.came = {"198.18.0.1": 0.0, "198.18.0.2": 0.0}
        self.held = dict.fromkeys(self.came, 0.0)
        self.silent: set[str] = set()
        self.engines: Mapping[str, float] | None = dict.fromkeys((*IN_FLIGHT, SERVED), 0.0)

    @property
    def replicas(self) -> int:
        assert self.bench.cluster.body is not None
        return int(self.bench.cluster.body["spec"]["replicas"])

    async def settle(self) -> None:
        await self.bench.settle(rounds=6)

    def answers(self) -> Answers:
        return {
            host: None if host in self.silent else {KEY: Asked(self.came[host], self.held[host])} for host in self.came
        }

    async def tick(self, seconds: float = 2.0) -> None:
        """Everybody is asked once; who is told, looks."""
        bench = self.bench
        bench.clock += seconds
        for name in bench.cluster.pods:
            bench.samples.record(Target(KEY, name, "198.18.1.9"), self.engines, at=bench.clock, wall=0)
        bench.demand.take(self.answers())
        if bench.told:
            bench.told.clear()
            await bench.look()

    async def pass_s(self, seconds: float) -> None:
        for _ in range(int(seconds / 2)):
            await self.tick()

    async def asleep(self) -> None:
        await self.settle()
        await self.pass_s(64)
        assert self.replicas == 0
        await self.settle()


async def test_it_goes_to_zero_and_the_next_request_brings_it_back() -> None:
    it = Sleeper()
    await it.settle()
    assert it.replicas == 1 and it.bench.condition("Ready") == ("True", "Answering")
    hpa = it.bench.cluster.children["HorizontalPodAutoscaler", "smol"]
    assert hpa["spec"]["minReplicas"] == 1
    await it.pass_s(58)
    assert it.replicas == 1
    await it.pass_s(6)
    assert it.replicas == 0
    await it.settle()
    status = it.bench.cluster.status
    assert it.bench.cluster.pods == {} and status["phase"] == "ScaledToZero" and status["autoscaling"]["asleep"] is True
    assert it.bench.condition("Ready") == ("False", "ScaledToZero")
    assert "idleAfter 1m" in it.bench.cluster.condition("Ready")["message"]
    assert "nobody asked for 1m: 1 to 0 replicas" in [event.message for event in it.bench.cluster.events]
    await it.pass_s(600)
    assert it.replicas == 0
    it.held["198.18.0.2"] = 1
    await it.tick(1)
    assert it.replicas == 1
    await it.settle()
    assert (
        it.bench.condition("Ready") == ("True", "Answering") and "asleep" not in it.bench.cluster.status["autoscaling"]
    )
    reasons = it.bench.reasons()
    assert (reasons.count("ScaledToZero"), reasons.count("ScaledFromZero")) == (1, 1)


async def test_a_client_that_did_not_wait_wakes_it_too() -> None:
    it = Sleeper()
    await it.asleep()
    it.came["198.18.0.1"] += 1
    await it.tick(1)
    assert it.replicas == 1


async def test_one_router_that_says_that_somebody_waits_is_enough() -> None:
    it = Sleeper()
    await it.asleep()
    it.silent = {"198.18.0.1"}
    it.held["198.18.0.2"] = 1
    await it.tick(1)
    assert it.replicas == 1


async def test_who_came_while_a_router_did_not_answer_is_heard_of_later() -> None:
    it = Sleeper()
    await it.asleep()
    it.silent = {"198.18.0.1"}
    it.came["198.18.0.1"] += 1
    await it.pass_s(10)
    assert it.replicas == 0
    it.silent = set()
    await it.tick(1)
    assert it.replicas == 1


@pytest.mark.parametrize("what", ["requests", "held", "running", "served", "router silent", "pod silent", "no routers"])
async def test_it_stays_as_long_as_that_goes_on(what: str) -> None:
    it = Sleeper()
    await it.settle()
    routers = dict(it.came)
    assert it.engines is not None
    for turn in range(20):
        await it.pass_s(40)
        match what:
            case "requests":
                it.came["198.18.0.1"] += 1
            case "held":
                it.held["198.18.0.1"] = 1
            case "running":
                it.engines = {**it.engines, IN_FLIGHT[0]: 1.0}
            case "served":
                it.engines = {**it.engines, SERVED: turn + 1.0}
            case "router silent":
                it.silent = {"198.18.0.1"}
            case "pod silent":
                it.engines = None
            case "no routers":
                it.came = {}
    assert it.replicas == 1
    it.held, it.silent, it.came = dict.fromkeys(routers, 0.0), set(), routers
    it.engines = dict.fromkeys((*IN_FLIGHT, SERVED), 0.0)
    await it.pass_s(64)
    assert it.replicas == 0


@pytest.mark.parametrize("what", ["paused", "rolling", "crashing"])
async def test_it_stays_while_something_is_done_to_it(what: str) -> None:
    it = Sleeper()
    await it.settle()
    if what == "paused":
        it.bench.cluster.command("pause")
    elif what == "rolling":
        it.bench.cluster.edit(engine={"maxNumSeqs": 4})
    else:
        next(iter(it.bench.cluster.pods.values()))["status"]["conditions"][1]["status"] = "False"
    for _ in range(10):
        await it.bench.look()
        await it.pass_s(40)
    assert it.replicas == 1 and "ScaledToZero" not in it.bench.reasons()


async def test_a_first_replica_that_cannot_start_is_left_to_try_and_not_taken_away() -> None:
    it = Sleeper()
    await it.asleep()
    it.held["198.18.0.1"] = 1
    await it.tick(1)
    (revision,) = it.bench.cluster.sizes()
    it.held["198.18.0.1"] = 0
    for _ in range(20):
        await it.bench.look()
        it.bench.cluster.play(broken=frozenset({revision}))
        await it.pass_s(40)
    assert it.replicas == 1
    assert it.bench.reasons().count("ScaledToZero") == it.bench.reasons().count("ScaledFromZero") == 1


async def test_two_replicas_are_the_autoscaler_s() -> None:
    it = Sleeper()
    await it.settle()
    it.bench.cluster.edit(replicas=2)
    await it.settle()
    await it.pass_s(200)
    assert it.replicas == 2
    it.bench.cluster.edit(replicas=1)
    await it.settle()
    await it.pass_s(64)
    assert it.replicas == 0


async def test_whoever_starts_one_by_hand_has_it_for_the_whole_span() -> None:
    it = Sleeper()
    await it.asleep()
    await it.pass_s(200)
    it.bench.cluster.edit(replicas=1)
    await it.settle()
    await it.pass_s(58)
    assert it.replicas == 1
    await it.pass_s(6)
    assert it.replicas == 0


async def test_another_operator_begins_the_span_anew_and_wakes_what_sleeps() -> None:
    it = Sleeper()
    await it.settle()
    await it.pass_s(50)
    await it.bench.loop.follow(KEY)
    await it.bench.look()
    await it.pass_s(50)
    assert it.replicas == 1
    await it.pass_s(14)
    assert it.replicas == 0
    await it.bench.loop.follow(KEY)
    await it.bench.look()
    it.held["198.18.0.1"] = 1
    await it.tick(1)
    assert it.replicas == 1


async def test_a_write_of_somebody_else_in_between_is_not_overwritten() -> None:
    it = Sleeper()
    await it.settle()
    await it.pass_s(58)
    cluster = it.bench.cluster
    observe = cluster.observe

    async def late(key: Key) -> Any:
        seen = await observe(key)
        cluster.edit(replicas=3)  # the autoscaler, after what was seen
        return seen

    cluster.observe = late  # type: ignore[method-assign]
    await it.pass_s(4)
    cluster.observe = observe  # type: ignore[method-assign]
    assert it.replicas == 3 and "ScaledToZero" not in it.bench.reasons()


async def test_what_was_told_and_not_done_is_told_again_but_not_at_every_look() -> None:
    it = Sleeper()
    await it.asleep()
    it.held["198.18.0.1"] = 1
    told: list[float] = []
    for _ in range(10):
        it.bench.clock += 1
        it.bench.demand.take(it.answers())
        if it.bench.told:
            told.append(it.bench.clock)
            it.bench.told.clear()
    assert len(told) == 2 and told[1] - told[0] == TELL_AGAIN_S


async def test_the_autoscaler_that_rests_at_zero_is_no_trouble() -> None:
    it = Sleeper()
    await it.settle()
    hpa = it.bench.cluster.children["HorizontalPodAutoscaler", "smol"]
    active = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": "m"}
    hpa["status"] = {"conditions": [active]}
    await it.asleep()
    hpa["status"] = {"conditions": [{**active, "status": "False", "reason": "ScalingDisabled"}]}
    await it.settle()
    assert it.bench.condition("ScalingActive") == ("Unknown", "ScaledToZero")
    it.held["198.18.0.1"] = 1
    await it.tick(1)
    await it.settle()
    assert it.bench.condition("ScalingActive") == ("Unknown", "NotYetReported")
    hpa["status"] = {"conditions": [active]}
    await it.settle()
    assert it.bench.condition("ScalingActive") == ("True", "ValidMetricFound")
    assert not {"ScalingDisabled", "ScalingActiveAgain"} & set(it.bench.reasons())


# -- real routers, and where they are


async def test_a_real_router_is_asked_and_who_waits_there_is_heard() -> None:
    told: list[Key] = []
    key = Key("demo", "m")
    async with running() as kit, aiohttp.ClientSession() as session:
        await kit.deploy("m", least=0)
        port = kit.router.addresses[1][1]

        async def where() -> tuple[str, ...]:
            return ("127.0.0.1",)

        demand = Demand(Samples(10), where, port=port, timeout_s=10, changed=told.append)
        assert demand.look(key, ZERO) is None
        await demand.round(session)
        assert told == []
        asking = asyncio.create_task(kit.chat("m"))
        await eventually("it waits", lambda: kit.router.room.count(("demo", "m")) == 1)
        await demand.round(session)
        assert told == [key] and demand.look(key, ZERO) == 1
        await kit.condition("m", await kit.pod("a"))
        assert (await asking)[0] == 200


async def test_a_router_that_is_none_or_not_there_is_no_answer() -> None:
    async def whatever(_: web.Request) -> web.Response:
        return web.Response(text="x" * 100, status=200)

    async with aiohttp.ClientSession() as session, TestServer(web.Application()) as nothing:
        assert await ask_router(session, "127.0.0.1", nothing.port or 0) is None, "404"
    app = web.Application()
    app.router.add_get("/metrics", whatever)
    async with aiohttp.ClientSession() as session, TestServer(app) as other:
        assert await ask_router(session, "127.0.0.1", other.port or 0) == {}
        assert await ask_router(session, "127.0.0.1", 1) is None, "nobody listens"


async def test_routers_are_all_behind_their_service_also_those_that_end() -> None:
    async with scripted_api() as api:
        path = "/apis/discovery.k8s.io/v1/namespaces/quire-system/endpointslices"

        def put(name: str, service: str, family: str, *endpoints: dict[str, Any]) -> None:
            marks = {"kubernetes.io/service-name": service}
            metadata = {"namespace": "quire-system", "labels": marks}
            api.put(f"{path}/{name}", {"metadata": metadata, "addressType": family, "endpoints": list(endpoints)})

        def pod(name: str, address: str, **conditions: bool) -> dict[str, Any]:
            return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": name}}

        ending = pod("b", "198.18.0.2", ready=False, terminating=True)
        put("four", "quire-router", "IPv4", pod("a", "198.18.0.1", ready=True), ending)
        put("six", "quire-router", "IPv6", pod("a", "fd00::1", ready=True), pod("c", "fd00::3", ready=False))
        put("other", "quire-operator", "IPv4", pod("d", "198.18.0.9", ready=True))
        client = api.client()
        try:
            found = await router_addresses(Cluster(client), "quire-system", "quire-router")
            assert found == ("198.18.0.1", "198.18.0.2", "[fd00::3]")
        finally:
            await client.close()


async def test_where_routers_cannot_be_found_nothing_moves(caplog: pytest.LogCaptureFixture) -> None:
    async def nowhere() -> tuple[str, ...]:
        raise httpx2.ConnectError("refused")

    told: list[Key] = []
    demand = Demand(Samples(10), nowhere, port=1, timeout_s=1, changed=told.append)
    demand.look(KEY, ZERO)
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            await demand.round(session)
    assert told == [] and demand.look(KEY, ZERO) is None
    assert caplog.text.count("the routers cannot be asked") == 1
