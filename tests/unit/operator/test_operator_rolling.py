"""The rolling policy as properties: never below the available minimum, never above the surge, always converging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from quire_operator.policy import Limits, RevisionView, next_replicas


@dataclass
class World:
    """Workloads and their pods; each pod is ready or not."""

    sizes: dict[str, int]
    pods: dict[str, list[bool]]
    terminating: dict[str, int] = field(default_factory=dict)

    def views(self) -> list[RevisionView]:
        return [
            RevisionView(
                name=name,
                desired=size,
                ready=sum(self.pods.get(name, [])),
                pods=len(self.pods.get(name, [])) + self.terminating.get(name, 0),
                created=name,
            )
            for name, size in self.sizes.items()
        ]

    def available(self) -> int:
        return sum(min(view.ready, view.desired) for view in self.views())

    def carry_out(self) -> None:
        """The Deployment controller: unready pods go first, new ones begin unready."""
        for name, size in self.sizes.items():
            pods = sorted(self.pods.get(name, []))
            gone = max(len(pods) - size, 0)
            self.terminating[name] = gone
            self.pods[name] = pods[gone:] + [False] * max(size - len(pods), 0)

    def start(self, healthy: frozenset[str]) -> None:
        for name in self.pods:
            if name in healthy:
                self.pods[name] = [True] * len(self.pods[name])


@st.composite
def situations(draw: st.DrawFn) -> tuple[World, int, Limits]:
    names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=4))
    sizes = {name: draw(st.integers(0, 5)) for name in names}
    pods = {name: draw(st.lists(st.booleans(), max_size=6)) for name in names}
    surge, unavailable = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if surge == unavailable == 0:
        surge = 1
    strategies: tuple[Literal["RollingUpdate", "Recreate"], ...] = ("RollingUpdate", "Recreate")
    strategy = draw(st.sampled_from(strategies))
    return World(sizes, pods), draw(st.integers(0, 6)), Limits(surge, unavailable, strategy)


@given(situations())
def test_no_step_takes_a_needed_ready_pod(situation: tuple[World, int, Limits]) -> None:
    world, wanted, limits = situation
    if limits.strategy == "Recreate":
        return
    before = world.available()
    world.sizes |= next_replicas("a", wanted, world.views(), limits)
    assert world.available() >= min(before, max(wanted - limits.max_unavailable, 0))


@given(situations())
def test_no_step_goes_above_the_surge_by_adding(situation: tuple[World, int, Limits]) -> None:
    world, wanted, limits = situation
    before = dict(world.sizes)
    after = next_replicas("a", wanted, world.views(), limits)
    grown = {name for name, size in after.items() if size > before.get(name, 0)}
    ready = {view.name: view.kept_ready for view in world.views()}
    grown_old = grown - {"a"}
    assert len(grown_old) <= 1 and all(ready[name] for name in grown_old), "an old one grows only if it serves"
    assert not grown_old or not any(world.pods.get("a", [])), "and only while the wanted one does not"
    if grown and any(size for name, size in before.items() if name != "a"):
        assert sum(after.values()) <= wanted + limits.max_surge


@given(situations())
def test_recreate_never_mixes_revisions(situation: tuple[World, int, Limits]) -> None:
    world, wanted, limits = situation
    after = next_replicas("a", wanted, world.views(), Limits(limits.max_surge, limits.max_unavailable, "Recreate"))
    if any(view.pods or view.desired for view in world.views() if view.name != "a"):
        assert after["a"] == 0
    assert all(size == 0 for name, size in after.items() if name != "a")


@settings(max_examples=300)
@given(situations(), st.integers(0, 6))
def test_it_converges_when_the_wanted_revision_is_healthy(situation: tuple[World, int, Limits], changed: int) -> None:
    world, wanted, limits = situation
    healthy = frozenset("a")
    for step in range(60):
        if step == 3:
            wanted = changed
        world.sizes |= next_replicas("a", wanted, world.views(), limits)
        world.carry_out()
        world.start(healthy)
    assert world.sizes["a"] == wanted
    assert all(size == 0 for name, size in world.sizes.items() if name != "a")
    assert next_replicas("a", wanted, world.views(), limits) == world.sizes, "and then nothing moves"


@given(st.integers(1, 6), st.integers(1, 3))
def test_a_broken_candidate_takes_no_stable_replica_down(wanted: int, surge: int) -> None:
    world = World({"old": wanted}, {"old": [True] * wanted})
    for _ in range(30):
        world.sizes |= next_replicas("new", wanted, world.views(), Limits(surge, 0))
        world.carry_out()
        world.start(frozenset({"old"}))
        assert sum(world.pods["old"]) == wanted
    assert world.sizes["new"] == min(surge, wanted)


@given(st.integers(1, 6))
def test_a_new_candidate_replaces_a_broken_one(wanted: int) -> None:
    world = World({"old": wanted, "broken": 1}, {"old": [True] * wanted, "broken": [False]})
    for _ in range(40):
        world.sizes |= next_replicas("fixed", wanted, world.views(), Limits(1, 0))
        assert world.available() >= wanted
        world.carry_out()
        world.start(frozenset({"old", "fixed"}))
    assert world.sizes == {"old": 0, "broken": 0, "fixed": wanted}


def test_without_spare_room_one_goes_before_one_comes() -> None:
    views = [RevisionView("old", 1, 1, 1)]
    assert next_replicas("new", 1, views, Limits(0, 1)) == {"new": 0, "old": 0}
    gone = [RevisionView("old", 0, 0, 1), RevisionView("new", 0, 0, 0)]
    assert next_replicas("new", 1, gone, Limits(0, 1)) == {"new": 1, "old": 0}


def test_a_decision_not_yet_carried_out_is_not_taken_twice() -> None:
    # old was told to shrink to 1 a moment ago, its second pod is still seen as ready.
    views = [RevisionView("old", 1, 2, 2), RevisionView("new", 1, 1, 1)]
    assert next_replicas("new", 2, views, Limits(1, 0)) == {"new": 2, "old": 1}
    # new was told to shrink to 1 a moment ago: two of its pods may be gone before they are asked to stay.
    views = [RevisionView("old", 2, 2, 2), RevisionView("new", 1, 3, 3)]
    assert next_replicas("new", 3, views, Limits(1, 0)) == {"new": 2, "old": 2}


@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 2), st.integers(0, 2))
def test_growth_beside_a_candidate_that_does_not_work_goes_to_the_revision_that_serves(
    wanted: int, growth: int, surge: int, unavailable: int
) -> None:
    """An autoscaler under load must not fill the cluster with pods that crash."""
    assume(surge + unavailable > 0 and wanted > unavailable)
    limits = Limits(surge, unavailable)
    world = World({"new": 0, "old": wanted}, {"old": [True] * wanted})
    for now_wanted in [wanted] * 4 + [wanted + growth] * 20:
        world.sizes |= next_replicas("new", now_wanted, world.views(), limits)
        world.carry_out()
        world.start(frozenset({"old"}))
    assert world.sizes["new"] <= surge + unavailable
    assert world.sizes["old"] >= wanted + growth - unavailable
    assert next_replicas("new", wanted + growth, world.views(), limits) == world.sizes, "and then nothing moves"
