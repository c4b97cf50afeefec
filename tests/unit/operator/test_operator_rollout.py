"""The rollout policy step by step, with simulated time: each strategy, each command, and what must not happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire_operator.policy import Control, Limits, RevisionView, Situation, Step, Strategy, decide
from quire_operator.policy.sizes import held, next_sizes
from quire_operator.policy.weights import by_pods, canary_share, split
from rollout_kit import World, started

ROLLING = Strategy("RollingUpdate", Limits(1, 0))
CANARY = Strategy("Canary", Limits(1, 0), (Step(25, 20.0), Step(50, None)))
BLUE_GREEN = Strategy("BlueGreen", Limits(1, 0), (Step(0, 20.0),), keep_old_s=30.0)


def until(world: World, holds: Any, *, limit: int = 60, dt: float = 1.0) -> None:
    for _ in range(limit):
        world.look()
        if holds():
            return
        world.play()
        world.now += dt
    raise AssertionError(f"not within {limit} looks: {world.sizes} {world.weights} {world.last}")


def hold(world: World) -> str | None:
    return world.last.hold if world.last is not None else None


# -- sizes


def test_without_spare_room_one_goes_before_one_comes() -> None:
    views = [RevisionView("old", 1, 1, 1)]
    assert next_sizes({"new": 1}, 1, views, Limits(0, 1)) == {"old": 0, "new": 0}
    views = [RevisionView("old", 0, 0, 1), RevisionView("new", 0, 0, 0)]
    assert next_sizes({"new": 1}, 1, views, Limits(0, 1)) == {"old": 0, "new": 1}


def test_a_decision_not_yet_carried_out_is_not_taken_twice() -> None:
    # old was told to shrink to 1 a moment ago, its second pod is still seen as ready.
    views = [RevisionView("old", 1, 2, 2), RevisionView("new", 1, 1, 1)]
    assert next_sizes({"new": 2}, 2, views, Limits(1, 0)) == {"old": 1, "new": 2}
    # new was told to shrink to 1 a moment ago: two of its pods may be gone before they are asked to stay.
    views = [RevisionView("old", 2, 2, 2), RevisionView("new", 1, 3, 3)]
    assert next_sizes({"new": 3}, 3, views, Limits(1, 0)) == {"old": 2, "new": 2}


def test_pods_without_requests_are_not_counted_on() -> None:
    views = [RevisionView("old", 2, 2, 2), RevisionView("new", 2, 2, 2)]
    assert next_sizes({"new": 2}, 2, views, Limits(2, 0))["old"] == 0
    assert next_sizes({"new": 2}, 2, views, Limits(2, 0), unrouted={"new"})["old"] == 2


def test_what_must_drain_keeps_its_ready_pods_and_loses_the_others() -> None:
    views = [RevisionView("old", 3, 2, 3), RevisionView("new", 3, 3, 3)]
    assert next_sizes({"new": 3}, 3, views, Limits(3, 0), unrouted={"old"}, locked={"old"})["old"] == 2
    assert next_sizes({"new": 3}, 3, views, Limits(3, 0), unrouted={"old"})["old"] == 0


def test_a_workload_that_shrinks_from_the_end_pays_with_what_is_ready_there() -> None:
    def sizes(ready: set[int], limits: Limits) -> int:
        places = dict.fromkeys(ready, True)
        views = (RevisionView("old", 3, len(ready), 3, places=places), RevisionView("new", 1, 1, 1))
        return next_sizes({"new": 3}, 3, views, limits)["old"]

    assert sizes({0, 1}, Limits(1, 0)) == 2, "the last one is not ready: it costs nothing"
    assert sizes({1, 2}, Limits(1, 0)) == 3, "the unready one cannot go before those that serve"
    assert sizes({1, 2}, Limits(1, 1)) == 2, "one may be missing"
    assert sizes({0, 2}, Limits(1, 1)) == 1, "with the last one goes the unready one before it"
    proven = RevisionView("b", 2, 2, 2, settling=(5.0,), places={0: True, 1: False}).proven
    assert proven.ready_at(2) == proven.ready == 1 and proven.unready == 1


def test_a_paused_rollout_scales_with_the_demand() -> None:
    views = [RevisionView("new", 1, 1, 1), RevisionView("old", 2, 2, 2)]
    assert held(2, views, Limits(1, 0), serving="old") == {"new": 1, "old": 2}
    assert held(5, views, Limits(1, 0), serving="old") == {"new": 1, "old": 4}
    assert held(1, views, Limits(0, 1), serving="old") == {"new": 0, "old": 1}


# -- weights


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), unique_by=lambda item: item[0]))
def test_shares_by_pods_add_up_and_are_fair(found: list[tuple[str, int]]) -> None:
    views = [RevisionView(name, ready, ready, ready) for name, ready in found]
    total = sum(ready for _, ready in found)
    weights = by_pods(views)
    assert sum(weights.values()) == (100 if total else 0)
    for name, ready in found:
        assert abs(weights[name] - 100 * ready / max(total, 1)) < 1


def test_a_share_falls_back_to_whoever_is_ready() -> None:
    a, b, c = (RevisionView(name, 2, 2, 2) for name in "abc")
    gone = replace(b, ready=0)
    assert split([a, b], 25, candidate="b", stable="a") == {"a": 75, "b": 25}
    assert split([a, gone], 25, candidate="b", stable="a") == {"a": 100, "b": 0}
    assert split([replace(a, ready=0), b], 25, candidate="b", stable="a") == {"a": 0, "b": 100}
    assert split([replace(a, ready=0), gone, c], 25, candidate="b", stable="a") == {"a": 0, "b": 0, "c": 100}
    assert split([replace(a, ready=0), gone], 25, candidate="b", stable="a") == {"a": 0, "b": 0}


def test_a_candidate_with_missing_pods_gets_less() -> None:
    assert [canary_share(50, ready, 4) for ready in (0, 1, 2, 4, 6)] == [0, 12, 25, 50, 50]
    assert canary_share(1, 1, 4) == 1


# -- strategies


def test_recreate_never_has_two_revisions_at_once() -> None:
    world = started(Strategy("Recreate", Limits(1, 0)))
    world.target = "b"
    world.look()
    assert world.sizes == {"a": 0, "b": 0}
    world.play()
    world.look()
    assert world.sizes == {"a": 0, "b": 0}, "old pods are still ending"
    world.play()
    until(world, lambda: world.sizes == {"a": 0, "b": 2})


def test_canary_goes_by_its_steps_and_waits_where_it_says_so() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    world.look()
    assert world.sizes == {"a": 4, "b": 0} and world.weights == {"a": 100, "b": 0}, "told before it is made"
    until(world, lambda: hold(world) == "StepPaused")
    assert world.sizes == {"a": 4, "b": 1} and world.weights == {"a": 75, "b": 25}
    assert world.last is not None and world.last.again_s == 20.0
    world.now += 19.0
    assert world.look().hold == "StepPaused" and world.last.again_s == 1.0
    world.now += 1.0
    world.look()
    assert world.progress is not None and world.progress.step == 1
    until(world, lambda: hold(world) == "StepPaused")
    assert world.sizes == {"a": 3, "b": 2} and world.weights == {"a": 50, "b": 50}, "maxSurge is 1: five pods"
    assert world.last.again_s is None, "nothing but a person ends it"
    world.now += 1e6
    assert world.look().hold == "StepPaused" and not world.last.late, "a wait for a person has no deadline"
    world.command = "resume"
    until(world, world.settled)


def test_canary_keeps_the_stable_revision_whole_where_there_is_room() -> None:
    world = started(replace(CANARY, limits=Limits(2, 0)), wanted=4)
    world.target = "b"
    until(
        world, lambda: world.progress is not None and world.progress.step == 1 and hold(world) == "StepPaused", dt=7.0
    )
    assert world.sizes == {"a": 4, "b": 2} and world.weights == {"a": 50, "b": 50}


def test_a_stable_pod_makes_room_only_once_the_candidate_gets_requests() -> None:
    world = started(replace(CANARY, steps=(Step(50, None),)), wanted=4)
    world.target = "b"
    until(world, lambda: world.weights.get("b") == 25)
    assert world.sizes == {"a": 4, "b": 1}, "the router does not know yet"
    until(world, lambda: hold(world) == "StepPaused")
    assert world.sizes == {"a": 3, "b": 2} and world.weights == {"a": 50, "b": 50}


def test_a_canary_whose_pods_go_loses_its_share_and_its_wait_begins_anew() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    world.pods["b"][0].ready = False
    world.health["b"] = "stuck"
    world.look()
    assert world.weights == {"a": 100, "b": 0} and world.progress is not None and world.progress.step_since is None
    world.health = {}
    until(world, lambda: hold(world) == "StepPaused")
    assert world.last is not None and world.last.again_s == 20.0


def test_the_verdict_of_an_analysis_holds_or_aborts() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    world.verdict = "wait"
    world.now += 1000.0
    assert world.look().hold == "StepPaused" and world.last is not None and world.last.again_s is None
    world.verdict = "fail"
    world.look()
    assert world.control.aborted == "b" and world.weights == {"a": 100, "b": 0}
    assert world.sizes["b"] == 1, "its share is taken before its pods are"
    until(world, lambda: hold(world) == "Aborted")
    assert world.sizes == {"a": 4, "b": 0}


def test_blue_green_moves_all_requests_at_once_and_keeps_the_old_set_for_a_while() -> None:
    world = started(BLUE_GREEN, wanted=3)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    assert world.sizes == {"a": 3, "b": 3} and world.weights == {"a": 100, "b": 0}
    shares = set()
    until(world, lambda: shares.add(tuple(world.weights.items())) or world.weights["b"] == 100)
    assert shares == {(("a", 100), ("b", 0)), (("a", 0), ("b", 100))}, "never a mixture"
    switched = world.now
    until(world, lambda: world.sizes["a"] == 0)
    assert world.now - switched >= 30.0
    until(world, world.settled)


def test_blue_green_does_not_switch_to_half_a_set() -> None:
    world = started(replace(BLUE_GREEN, steps=(Step(0, 0.0),)), wanted=3)
    world.target = "b"
    until(world, lambda: world.progress is not None and world.progress.step == 1)
    world.pods["b"][0].ready = False
    for _ in range(3):
        world.look()
        assert world.weights == {"a": 100, "b": 0}


def test_blue_green_returns_to_the_old_set_as_long_as_it_is_there() -> None:
    world = started(BLUE_GREEN, wanted=2)
    world.target = "b"
    until(world, lambda: world.weights.get("b") == 100)
    world.play()
    world.command = "abort"
    world.look()
    assert world.weights == {"a": 100, "b": 0} and world.sizes["a"] == 2


@pytest.mark.parametrize("work", [0, 3])
def test_a_revision_goes_when_it_is_idle_or_its_time_is_over(work: int) -> None:
    views = (
        RevisionView("a", 2, 2, 2, in_flight=work, weight=0, unrouted_at=1000.0),
        RevisionView("b", 2, 2, 2, weight=100),
    )
    world = started(replace(BLUE_GREEN, keep_old_s=0.0), wanted=2)
    world.target = "b"
    until(world, lambda: world.weights.get("b") == 100)
    situation = replace(world.situation(), views=views)
    assert decide(replace(situation, now=1004.0)).sizes["a"] == 2, "a router may not know yet"
    busy = decide(replace(situation, now=1006.0))
    assert (busy.sizes["a"], busy.hold) == ((2, "Draining") if work else (0, None))
    assert decide(replace(situation, now=1061.0)).sizes["a"] == 0
    silent = replace(situation, views=(replace(views[0], in_flight=None), views[1]), now=1006.0)
    assert decide(silent).sizes["a"] == 2, "a pod that says nothing is not idle"


# -- commands


def test_pause_holds_all_but_scaling_and_resume_goes_on() -> None:
    world = started(ROLLING, wanted=4)
    world.target = "b"
    until(world, lambda: world.sizes.get("b") == 2)
    world.command = "pause"
    world.run(20)
    sizes = dict(world.sizes)
    assert world.control.paused and hold(world) == "Paused" and world.last is not None and world.last.again_s is None
    world.wanted = 6
    world.run(5)
    assert world.sizes == {**sizes, "a": sizes["a"] + 6 - sum(sizes.values())}
    world.command = "resume"
    world.run(40)
    assert world.settled() and not world.control.paused


def test_a_pause_set_beforehand_holds_the_next_rollout() -> None:
    world = started(ROLLING)
    world.command = "pause"
    world.run(2)
    world.target = "b"
    world.run(10)
    assert world.sizes == {"a": 2, "b": 0}


def test_promote_leaves_out_the_steps() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    world.command = "promote"
    until(world, world.settled)
    assert world.control.promoted is None, "the next one goes by its steps again"


def test_a_command_is_carried_out_once() -> None:
    world = started(replace(CANARY, steps=(Step(10, None), Step(20, None), Step(50, None))), wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    for _ in range(4):
        world.command = "resume"  # the operator dies each time before it can remove the annotation
        assert world.look().consumed and world.control.handled == "resume"
        assert world.progress is not None and world.progress.step == 1
    until(world, lambda: hold(world) == "StepPaused")
    assert world.control == Control() and world.progress.step == 1
    world.command = "resume"  # and now it is said again
    world.look()
    assert world.progress.step == 2


@pytest.mark.parametrize("command", ["abort", "promote", "please"])
def test_a_command_without_effect_is_refused_with_a_reason(command: str) -> None:
    world = started(ROLLING)
    world.command = command
    decision = world.look()
    assert decision.refused and decision.consumed
    world.look()
    assert world.settled() and world.control == Control()


def test_retry_begins_with_the_first_step() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    world.command = "abort"
    until(world, lambda: hold(world) == "Aborted")
    world.command = "retry"
    until(world, lambda: hold(world) == "StepPaused")
    assert world.weights == {"a": 75, "b": 25}


# -- edits on the way


@pytest.mark.parametrize("strategy", [ROLLING, CANARY, BLUE_GREEN])
def test_a_new_edit_supersedes_and_the_stable_revision_stays(strategy: Strategy) -> None:
    world = started(strategy, wanted=3)
    world.target = "b"
    world.run(3)
    world.target = "c"
    world.look()
    assert world.stable == "a" and world.progress is not None and world.progress.revision == "c"
    assert world.weights["a"] >= 50
    until(world, lambda: world.sizes["b"] == 0, limit=90, dt=5.0)


@pytest.mark.parametrize("strategy", [ROLLING, CANARY, BLUE_GREEN])
def test_a_revert_uses_the_old_workload(strategy: Strategy) -> None:
    world = started(strategy, wanted=3)
    pods = list(world.pods["a"])
    world.target = "b"
    world.run(3)
    world.target = "a"
    world.run(20)
    assert world.settled()
    assert strategy is ROLLING or world.pods["a"] == pods, "not one of its pods was touched"


def test_old_revisions_are_kept_up_to_the_limit() -> None:
    world = started(replace(ROLLING, history=2))
    for name in "bcde":
        world.target = name
        world.run(30)
        assert world.settled()
    assert world.sizes == {"c": 0, "d": 0, "e": 2}


def test_to_zero_and_back_in_the_middle_of_a_canary() -> None:
    world = started(CANARY, wanted=4)
    world.target = "b"
    until(world, lambda: hold(world) == "StepPaused")
    world.wanted = 0
    world.run(3)
    assert not any(world.sizes.values()) and world.stable == "a"
    world.wanted = 4
    until(world, lambda: world.weights == {"a": 75, "b": 25} or world.weights == {"a": 50, "b": 50})


def test_an_edit_at_zero_needs_no_steps() -> None:
    world = started(CANARY, wanted=2)
    world.wanted = 0
    world.run(3)
    world.target = "b"
    world.run(2)
    assert world.stable == "b" and world.progress is None
    world.wanted = 2
    world.run(5)
    assert world.sizes["b"] == 2 and world.settled()


# -- deadlines


def test_without_progress_the_deadline_passes_and_any_progress_moves_it() -> None:
    world = started(replace(ROLLING, deadline_s=100.0))
    world.target, world.health["b"] = "b", "stuck"
    world.look()
    world.play()
    world.now += 99.0
    decision = world.look()
    assert not decision.late and decision.again_s == 1.0
    world.now += 1.0
    assert world.look().late and world.last is not None and world.last.again_s is None
    world.health = {}
    world.play()
    assert not world.look().late


def test_a_pod_that_comes_and_goes_is_no_progress() -> None:
    world = started(replace(ROLLING, deadline_s=100.0))
    world.target, world.health["b"] = "b", "stuck"
    world.run(2)
    for turn in range(30):
        world.pods["b"][0].ready = turn % 2 == 0
        world.look()
        world.now += 10.0
        world.pods["a"] = [pod for pod in world.pods["a"] if not pod.terminating]
    assert world.last is not None and world.last.late


def test_without_surge_a_candidate_that_crashes_gives_the_room_back() -> None:
    world = started(Strategy("RollingUpdate", Limits(0, 1)), wanted=1)
    world.target, world.health["b"] = "b", "crashes"
    until(world, lambda: world.control.aborted == "b")
    assert "maxSurge 0" in (world.control.why or "")
    until(world, lambda: hold(world) == "Aborted")
    assert world.sizes == {"a": 1, "b": 0} and world.serving() == 1


def test_where_a_candidate_crashes_the_stable_revision_is_made_whole_as_far_as_there_is_room() -> None:
    views = (RevisionView("a", 3, 3, 3), RevisionView("b", 1, 0, 1, crashing=True))
    decision = decide(Situation("b", 4, views, replace(ROLLING, limits=Limits(1, 1)), 0.0, stable="a"))
    assert decision.sizes == {"a": 4, "b": 1}


def test_what_serves_is_protected_even_if_the_status_is_lost() -> None:
    views = (RevisionView("a", 2, 2, 2, created="1"), RevisionView("b", 1, 0, 1, created="2"))
    decision = decide(Situation("b", 2, views, ROLLING, 0.0))
    assert decision.stable == "a" and decision.sizes == {"a": 2, "b": 1}
