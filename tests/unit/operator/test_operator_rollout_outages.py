"""Rollouts that took down what served, or went past a promise: each one as it was found, with simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quire_operator.policy import Control, Limits, RevisionView, Situation, Step, Strategy, decide
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


@pytest.mark.parametrize("step", [LAST.steps[0], Step(5, None)])
def test_one_look_at_unready_stable_pods_costs_few_of_them(step: Step) -> None:
    world = started(replace(LAST, steps=(step,)), wanted=20)
    world.target = "b"
    world.run(12, dt=1.0)
    assert world.sizes["a"] >= 15
    left = 21 - world.sizes["b"]
    for pod in world.pods["a"]:
        pod.ready = False
    world.look()
    assert world.weights["b"] == 100, "who else could answer"
    assert world.sizes["a"] >= left - 2, "unready pods go at the pace of the surge"
    world.play()
    world.look()
    assert world.weights["a"] > 0, "they take part again as soon as they can"
    assert world.sizes["a"] >= left - 2


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
