"""Rollouts that took down what served, or went past a promise: each one as it was found, with simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operator_kit import owner
from quire_operator.observation import PodView, WorkloadView, pod_views
from quire_operator.policy import (
    Control,
    Limits,
    RevisionView,
    Situation,
    Step,
    Strategy,
    decide,
    make_plan,
    to_seconds,
)
from quire_operator.policy.plan import settling_s
from rollout_kit import World, started

ROLLING = Strategy("RollingUpdate", Limits(1, 0))
LAST = Strategy("Canary", Limits(1, 0), (Step(25, 0.0),))


def in_last_phase(strategy: Strategy = LAST, *, wanted: int = 4, old: int = 1) -> World:
    """A Canary whose steps are over, with `old` pods of the stable revision left."""
    world = started(strategy, wanted=wanted)
    world.target = "b"
    for _ in range(60):
        world.run(1, dt=3.0)
        steps_done = world.progress is not None and world.progress.step >= len(strategy.steps)
        if steps_done and world.sizes["a"] <= old and world.stable == "a":
            return world
    raise AssertionError(world.sizes)


# -- steps


@pytest.mark.parametrize(
    ("wanted", "weight", "unavailable", "stays"),
    [
        (1, 5, 1, {"a": 0, "b": 1}),
        (2, 60, 1, {"a": 1, "b": 1}),
        (4, 80, 1, {"a": 1, "b": 3}),
        (3, 70, 2, {"a": 1, "b": 2}),
    ],
)
def test_a_step_that_waits_for_a_person_is_not_skipped_without_surge(
    wanted: int, weight: int, unavailable: int, stays: dict[str, int]
) -> None:
    world = started(Strategy("Canary", Limits(0, unavailable), (Step(weight, None),)), wanted=wanted)
    world.target = "b"
    world.run(30)
    assert world.stable == "a" and world.last is not None and world.last.hold == "StepPaused"
    assert world.sizes == stays, "where there are two pods, one is left to the stable revision"
    world.command = "resume"
    world.run(30)
    assert world.settled()


def test_scaling_in_during_a_step_does_not_end_it() -> None:
    world = started(Strategy("Canary", Limits(0, 1), (Step(25, None),)), wanted=4)
    world.target = "b"
    world.run(20)
    world.wanted = 1
    world.run(20)
    assert world.stable == "a" and world.progress is not None and world.progress.step == 0


# -- the stable revision's pods


def test_one_look_at_unready_stable_pods_costs_one_of_them() -> None:
    world = in_last_phase(replace(LAST, steps=(Step(5, 0.0),)), wanted=20, old=20)
    assert world.sizes == {"a": 20, "b": 1}
    for pod in world.pods["a"]:
        pod.ready = False
    world.look()
    assert world.weights == {"a": 0, "b": 100}, "who else could answer"
    assert world.sizes["a"] == 19, "unready pods go at the pace of the surge"
    world.play()
    world.look()
    assert world.weights["a"] > 80, "they take part again as soon as they can"
    assert world.sizes["a"] >= 18


def test_a_stable_pod_that_returns_does_not_cost_the_others() -> None:
    views = (
        RevisionView("a", 20, 1, 20, created="1"),
        RevisionView("b", 1, 1, 1, created="2", weight=100),
    )
    found = started(LAST, wanted=20)
    found.target = "b"
    found.look()
    decision = decide(replace(found.situation(), views=views))
    assert decision.sizes["a"] == 20 and decision.weights["a"] > 0


def test_a_stable_revision_that_is_broken_for_good_is_replaced_all_the_same() -> None:
    world = started(LAST, wanted=4)
    world.health["a"] = "crashes"
    world.target = "b"
    world.run(60)
    assert world.settled()


# -- the way back


def test_an_abort_leaves_the_candidate_what_the_stable_revision_cannot_carry() -> None:
    world = in_last_phase()
    world.command = "abort"
    world.look()
    assert world.weights["a"] <= 40 and world.weights["b"] >= 60 and world.sizes["b"] == 3
    shares = [world.weights["a"]]
    for _ in range(20):
        world.run(1)
        shares.append(world.weights["a"])
        assert world.serving() >= 4
    assert shares == sorted(shares) and shares[-1] == 100 and world.sizes == {"a": 4, "b": 0}


def test_an_edit_in_the_last_phase_leaves_requests_where_pods_are() -> None:
    world = in_last_phase()
    world.target = "c"
    for _ in range(40):
        world.look()
        serving = sum(view.ready for view in world.views() if world.weights[view.name] > 0)
        assert serving >= 4, (world.sizes, world.weights)
        world.play()
        world.now += 3.0
    assert world.settled()


def test_an_edit_after_the_switch_is_no_rollback() -> None:
    world = started(Strategy("BlueGreen", Limits(1, 0), (Step(0, 0.0),), keep_old_s=600.0), wanted=4)
    world.target = "b"
    world.run(20)
    assert world.weights == {"a": 0, "b": 100} and world.stable == "a"
    world.target, world.health["c"] = "c", "crashes"
    for _ in range(20):
        world.run(1)
        assert world.weights["b"] == 100 and world.sizes["b"] == 4
    assert world.stable == "b"
    world.health = {}
    world.run(200)
    assert world.settled()


def test_blue_green_goes_back_only_to_a_whole_set() -> None:
    views = (
        RevisionView("a", 4, 2, 4, created="1", weight=0, unrouted_at=1.0),
        RevisionView("b", 4, 4, 4, created="2", weight=100),
    )
    strategy = Strategy("BlueGreen", Limits(1, 0), (Step(0, 0.0),))
    back = Situation("b", 4, views, strategy, 9.0, stable="a", control=Control(aborted="b"))
    assert decide(back).weights == {"a": 0, "b": 100}
    whole = replace(back, views=(replace(views[0], ready=4), views[1]))
    assert decide(whole).weights == {"a": 100, "b": 0}


def switched(*, pause_s: float | None = 0.0) -> World:
    """A BlueGreen just after its switch; the old set stays for a minute."""
    world = started(Strategy("BlueGreen", Limits(1, 0), (Step(0, pause_s),), keep_old_s=60.0), wanted=4, proven_s=10.0)
    world.target = "b"
    for _ in range(40):
        world.run(1, dt=3.0)
        if world.last is not None and world.last.hold == "StepPaused" and pause_s is None:
            world.command = "resume"
        if world.weights["b"] == 100:
            return world
    raise AssertionError(world.weights)


@pytest.mark.parametrize("pause_s", [0.0, None])
def test_requests_go_back_to_the_old_set_when_the_new_one_breaks_after_the_switch(pause_s: float | None) -> None:
    world = switched(pause_s=pause_s)
    world.run(5)
    assert world.weights == {"a": 0, "b": 100} and world.sizes["a"] == 4
    pod = world.pods["b"][0]
    pod.ready, pod.restarts = False, 1
    world.look()
    assert world.weights == {"a": 100, "b": 0} and world.sizes == {"a": 4, "b": 4}
    world.run(11)  # it was ready for long enough before it fell; now it has to be for longer
    assert world.weights["a"] == 100 and world.progress is not None and world.progress.step == 0
    world.run(8)
    if pause_s is None:
        assert world.last is not None and world.last.hold == "StepPaused", "whoever released it, did so before it broke"
        world.command = "resume"
    world.run(60)
    assert world.settled()


@pytest.mark.parametrize("pause_s", [0.0, None])
def test_a_new_set_that_keeps_breaking_is_given_up_at_its_deadline(pause_s: float | None) -> None:
    strategy = Strategy("BlueGreen", Limits(1, 0), (Step(0, pause_s),), deadline_s=300.0, keep_old_s=600.0)
    world = started(strategy, wanted=2, proven_s=10.0)
    world.health["b"], world.up_s, world.target = "flaps", 100.0, "b"
    shares = []
    for _ in range(200):
        world.run(1)
        shares.append(world.weights["b"])
        if world.control.aborted:
            break
    assert world.control.aborted == "b" and "keep ending by themselves" in (world.control.why or "")
    assert (100 in shares) == (pause_s is not None) and world.now - 1_000_000.0 < 900.0
    world.run(40)
    assert world.sizes == {"a": 2, "b": 0} and world.weights == {"a": 100, "b": 0}


def test_a_new_set_that_broke_once_and_recovers_is_not_given_up() -> None:
    world = started(
        Strategy("BlueGreen", Limits(1, 0), (Step(0, 400.0),), deadline_s=300.0, keep_old_s=60.0),
        wanted=2,
        proven_s=10.0,
    )
    world.target = "b"
    world.run(10)
    world.pods["b"][0].ready, world.pods["b"][0].restarts = False, 1
    world.run(200)
    assert world.settled() and not world.control.aborted


def test_a_wait_for_a_person_does_not_hide_that_a_part_of_the_new_set_is_broken() -> None:
    strategy = Strategy("BlueGreen", Limits(1, 0), (Step(0, None),), deadline_s=300.0)
    world = started(strategy, wanted=2, proven_s=10.0)
    world.target = "b"
    world.run(10)
    assert world.last is not None and world.last.hold == "StepPaused"
    for _ in range(70):
        world.run(1)
        if world.control.aborted:
            break
        world.pods["b"][0].ready, world.pods["b"][0].restarts = False, 4
    assert world.control.aborted == "b"


def test_a_new_set_that_never_comes_gives_its_room_back() -> None:
    world = started(Strategy("BlueGreen", Limits(1, 0), (Step(0, 0.0),), deadline_s=300.0), wanted=2)
    world.health["b"], world.target = "stuck", "b"
    world.run(70)
    assert world.control.aborted == "b" and "no progress within progressDeadline" in (world.control.why or "")
    world.run(20)
    assert world.sizes == {"a": 2, "b": 0}


def test_the_old_set_stays_until_the_new_one_is_whole() -> None:
    world = switched()
    del world.pods["b"][0]  # its node is lost, and there is no other
    for _ in range(100):
        world.look()
        world.now += 5.0
        assert world.sizes["a"] == 4 and world.weights == {"a": 0, "b": 100}
    world.run(60)
    assert world.settled()


def test_an_aborted_candidate_gets_no_request_after_the_end() -> None:
    world = started(Strategy("Canary", Limits(1, 0), (Step(25, None),)), wanted=4)
    world.target = "b"
    world.run(10)
    world.command = "abort"
    for _ in range(30):
        world.look()
        assert not (world.routed("b") and any(pod.ready for pod in world.pods["b"]))
        if world.sizes["b"]:
            world.play()  # once it is told to go, its pod takes its time
        world.now += 3.0
    world.run(3)
    assert world.last is not None and world.last.hold == "Aborted" and world.progress is None


# -- to zero and back


@pytest.mark.parametrize("paused", [False, True])
def test_after_zero_the_proven_revision_comes_back(paused: bool) -> None:
    world = started(ROLLING, wanted=4)
    world.target, world.health["b"] = "b", "crashes"
    world.run(10)
    world.command = "pause" if paused else None
    world.wanted = 0
    world.run(4)
    world.wanted = 4
    world.run(20)
    assert world.stable == "a" and world.serving() == 4
    assert world.sizes == {"a": 4, "b": 0 if paused else 1}
    freed = world
    freed.health, freed.command = {}, "resume" if paused else None
    freed.run(30)
    assert freed.settled()


# -- pods that work for a moment


@pytest.mark.parametrize(
    "strategy",
    [
        ROLLING,
        Strategy("Canary", Limits(1, 0), (Step(25, 0.0),)),
        Strategy("BlueGreen", Limits(1, 0), (Step(0, 0.0),), keep_old_s=30.0),
    ],
    ids=lambda strategy: strategy.name,
)
def test_a_candidate_that_is_ready_for_a_moment_takes_nothing(strategy: Strategy) -> None:
    world = started(strategy, wanted=4, proven_s=10.0)
    world.target = "b"
    for turn in range(120):
        world.health["b"] = "healthy" if turn % 8 < 1 else "crashes"
        world.run(1)
        assert world.serving() >= 4 and world.sizes["a"] == 4
    assert world.stable == "a" and world.weights["b"] == 0
    world.health = {}
    world.run(80)
    assert world.settled()


@pytest.mark.parametrize("strategy", [ROLLING, LAST], ids=lambda strategy: strategy.name)
def test_a_candidate_that_crashes_again_and_again_costs_the_surge_at_most(strategy: Strategy) -> None:
    world = started(strategy, wanted=4, proven_s=10.0)
    world.target = "b"
    for turn in range(120):
        world.health["b"] = "healthy" if turn % 9 < 3 else "crashes"
        world.run(1)
        assert world.sizes["a"] >= 3
    assert world.stable == "a"
    world.health = {}
    world.run(150)
    assert world.settled()


def test_the_next_look_is_when_a_pod_has_proven_itself() -> None:
    world = started(ROLLING, wanted=2, proven_s=10.0)
    world.target = "b"
    world.run(2)
    decision = world.look()
    assert decision.again_s is not None and 0 < decision.again_s <= 10.0 and decision.sizes == {"a": 2, "b": 1}
    world.now += decision.again_s
    assert world.look().sizes["a"] == 1


def test_how_long_a_pod_is_ready_before_it_counts() -> None:
    waits = [settling_s(pod_ready_at("2026-01-01T00:00:00Z", restarts=n), START + 4.0) for n in (0, 1, 2, 9)]
    assert waits == [6.0, 56.0, 116.0, 296.0]
    assert settling_s(pod_ready_at("2026-01-01T00:00:00Z"), START + 10.0) == 0.0
    assert settling_s(pod_ready_at("2026-01-01T01:00:00Z"), START) == 0.0, "a node's clock is an hour ahead"
    assert settling_s(pod_ready_at(None), START) == 0.0
    whole = owner({"rollout": {"strategy": "BlueGreen"}})
    workload = WorkloadView("smol-a", "a", 1, "2026-01-01T00:00:00Z", None)
    pods = (replace(pod_ready_at("2026-01-01T00:00:00Z"), revision="a"),)
    for of, waits in ((owner(), ()), (whole, (18.0,))):
        [view] = make_plan(of, "a", [workload], pods, now="2026-01-01T00:00:12Z").views
        assert view.settling == waits, "where all requests move at once, more is asked"


START = to_seconds("2026-01-01T00:00:00Z")


def pod_ready_at(at: str | None, *, restarts: int = 0) -> PodView:
    ready = {"type": "Ready", "status": "True"} | ({"lastTransitionTime": at} if at else {})
    items = [{"name": "engine", "restartCount": restarts, "state": {"running": {}}}]
    fetched = [{"name": "fetch", "restartCount": 5, "state": {"terminated": {"exitCode": 0}}}]
    status = {"phase": "Running", "conditions": [ready], "containerStatuses": items, "initContainerStatuses": fetched}
    return pod_views([{"metadata": {"name": "p", "namespace": "n"}, "status": status}])[0]


@pytest.mark.parametrize(("exit_code", "crashing"), [(0, False), (1, True)])
def test_a_fetch_that_took_some_tries_is_no_crash(exit_code: int, crashing: bool) -> None:
    tries = {"name": "fetch", "restartCount": 3, "state": {"terminated": {"exitCode": exit_code}}}
    body = {
        "metadata": {"name": "p", "namespace": "n"},
        "status": {"phase": "Pending", "initContainerStatuses": [tries]},
    }
    assert pod_views([body])[0].crashing is crashing


# -- the clock of a step, and of what else lasts

HOUR = 3600.0


def late_after(world: World, most_s: float) -> bool:
    """Whether the deadline is over within so many seconds of a clock that has just gone back by an hour."""
    world.now -= HOUR
    for pod in (pod for pods in world.pods.values() for pod in pods):
        pod.ready_at -= HOUR  # of the kubelets, which see no jump
    end = world.now + most_s
    while world.now < end:
        world.run(1)
        if world.last is not None and (world.last.late or world.control.aborted):
            return True
    return False


def test_a_clock_that_goes_back_lengthens_no_deadline() -> None:
    world = started(Strategy("RollingUpdate", Limits(0, 1), deadline_s=60.0))
    world.target, world.health["b"] = "b", "stuck"
    world.run(6)
    assert late_after(world, 75.0)


def test_nor_the_deadline_of_a_set_that_keeps_breaking() -> None:
    world = started(Strategy("BlueGreen", Limits(0, 1), (Step(0, None),), deadline_s=60.0), wanted=2)
    world.target = "b"
    world.run(8)
    assert world.last is not None and world.last.hold == "StepPaused"
    world.health["b"] = "flaps"
    world.run(4)
    assert world.progress is not None and world.progress.broken_since is not None
    assert late_after(world, 90.0)


def test_nor_what_an_old_set_is_kept_for() -> None:
    world = started(Strategy("BlueGreen", Limits(1, 0), (Step(0, 0.0),), keep_old_s=60.0), wanted=2)
    world.target = "b"
    for _ in range(40):
        world.run(1)
        if world.weights.get("b") == 100:
            break
    assert world.sizes["a"] == 2
    world.now -= HOUR
    world.run(15)
    assert world.sizes["a"] == 0


def test_a_clock_that_goes_back_does_not_lengthen_a_step() -> None:
    world = started(Strategy("Canary", Limits(1, 0), (Step(25, 20.0),)), wanted=4)
    world.target = "b"
    world.run(8, dt=1.0)
    assert world.last is not None and world.last.hold == "StepPaused"
    world.now -= 3600.0
    world.run(6)
    assert world.progress is not None and world.progress.step == 1


def test_a_step_goes_on_while_an_autoscaler_moves() -> None:
    world = started(Strategy("Canary", Limits(1, 0), (Step(25, 600.0),)), wanted=12)
    world.target = "b"
    for turn in range(240):
        world.wanted = 12 + turn // 60 % 2
        world.run(1)
    assert world.progress is None or world.progress.step == 1


def test_a_candidate_that_comes_and_goes_in_a_step_is_late() -> None:
    world = started(Strategy("Canary", Limits(1, 0), (Step(25, 600.0),), deadline_s=900.0), wanted=4)
    world.target = "b"
    late = False
    for turn in range(300):
        world.health["b"] = "healthy" if turn // 12 % 2 == 0 else "crashes"
        late = world.run(1) or late or (world.last is not None and world.last.late)
    assert late


# -- pause


def test_what_is_paused_follows_the_demand_with_pods_that_serve() -> None:
    world = started(Strategy("BlueGreen", Limits(1, 0), (Step(0, None),)), wanted=4)
    world.target = "b"
    world.run(10)
    world.command = "pause"
    world.run(2)
    world.wanted = 8
    world.run(20)
    assert world.serving() == 8 and world.sizes == {"a": 8, "b": 4}

    world = started(ROLLING, wanted=2)
    world.target, world.health["b"] = "b", "crashes"
    world.run(5)
    world.command = "pause"
    world.run(2)
    world.wanted = 3
    world.run(20)
    assert world.serving() == 3 and world.sizes == {"a": 3, "b": 1}


def test_a_resume_that_would_do_nothing_is_refused() -> None:
    world = started(Strategy("Canary", Limits(1, 0), (Step(25, None), Step(50, None))), wanted=4)
    world.target, world.health["b"] = "b", "stuck"
    world.run(3)
    world.command = "resume"
    decision = world.look()
    assert decision.consumed and decision.refused and "not ready" in decision.refused
    world.health = {}
    world.run(10)
    assert world.progress is not None and world.progress.step == 0
    world.command = "resume"
    assert world.look().refused is None and world.progress.step == 1
