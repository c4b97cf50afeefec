"""Random strategies, edits, faults and commands against a simulated cluster: nothing unsafe ever, and an end always.

Safety is checked at every decision by `rollout_kit.check`: shares add up to 100 and go to ready pods only, the pods that answer are never
taken below the minimum, never more pods than the surge allows, no pod goes before the router knows, a candidate that crashes costs nothing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from quire_operator.policy import Limits, Step, Strategy
from rollout_kit import Pod, World, freed, started

NAMES = "abcd"

pauses = st.sampled_from([0.0, 0.0, 20.0, None])


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    name = draw(st.sampled_from(["RollingUpdate", "Recreate", "BlueGreen", "Canary"]))
    surge, unavailable = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    if surge == unavailable == 0:
        surge = 1
    steps: tuple[Step, ...] = ()
    if name == "Canary":
        weights = draw(st.lists(st.integers(1, 100), min_size=1, max_size=4, unique=True))
        steps = tuple(Step(weight, draw(pauses)) for weight in sorted(weights))
    elif name == "BlueGreen":
        steps = (Step(0, draw(pauses)),)
    return Strategy(
        name,
        Limits(surge, unavailable),
        steps,
        deadline_s=draw(st.sampled_from([60.0, 1800.0])),
        drain_s=draw(st.sampled_from([0.0, 30.0])),
        keep_old_s=draw(st.sampled_from([0.0, 30.0])),
        history=draw(st.integers(0, 3)),
    )


actions = st.one_of(
    st.tuples(st.just("edit"), st.sampled_from(NAMES)),
    st.tuples(st.just("scale"), st.integers(0, 6)),
    st.tuples(st.just("health"), st.sampled_from(NAMES), st.sampled_from(["healthy", "crashes", "stuck", "flaps"])),
    st.tuples(st.just("unready"), st.integers(0, 20)),
    st.tuples(st.just("evict"), st.integers(0, 20)),
    st.tuples(st.just("command"), st.sampled_from(["pause", "resume", "promote", "abort", "retry", "nonsense"])),
    st.tuples(st.just("verdict"), st.sampled_from(["pass", "wait", "fail"])),
    st.tuples(st.just("time"), st.sampled_from([0.0, 1.0, 20.0, 100.0, -30.0])),
    st.tuples(st.just("strategy"), strategies()),
    st.just(("look",)),
    st.just(("die",)),
    st.just(("play",)),
    st.just(("forget",)),
)


def act(world: World, action: tuple[Any, ...]) -> None:
    kind, *values = action
    pods = [pod for mine in world.pods.values() for pod in mine]
    if kind == "edit":
        world.target = values[0]
    elif kind == "scale":
        world.wanted = values[0]
    elif kind == "health":
        world.health[values[0]] = values[1]
    elif kind == "unready" and pods:
        pods[values[0] % len(pods)].ready = False
    elif kind == "evict" and pods:
        gone = pods[values[0] % len(pods)]
        world.pods = {name: [pod for pod in mine if pod is not gone] for name, mine in world.pods.items()}
    elif kind == "command":
        world.command = values[0]
    elif kind == "verdict":
        world.verdict = values[0]
    elif kind == "time":
        world.now += values[0]  # backwards too: another operator's clock
    elif kind == "strategy":
        world.strategy = values[0]
    elif kind == "look":
        world.look()
        world.now += 1.0
    elif kind == "die":
        world.look(dies_before_status=True)
    elif kind == "play":
        world.play()
    elif kind == "forget":
        # The status is lost, as by a restore of a backup without it.
        world.stable, world.progress, world.weights, world.unrouted = None, None, {}, {}


@settings(max_examples=150, deadline=None)
@given(strategies(), st.integers(0, 6), st.lists(actions, max_size=40), st.sampled_from([0.0, 10.0]), st.booleans())
def test_whatever_happens_is_safe_and_comes_to_an_end(
    strategy: Strategy, wanted: int, happens: list[tuple[Any, ...]], proven_s: float, ordered: bool
) -> None:
    """ordered: replicas are units of pods, whose workload shrinks from the end."""
    world = World(strategy, wanted=wanted, proven_s=proven_s, ordered=ordered)
    for action in happens:
        act(world, action)
    freed(world)
    if world.wanted == 0:
        world.run(25)
        assert not any(world.sizes.values())
        world.wanted = 1  # at zero a rollout under way stays where it is
    for _ in range(6):
        world.run(25)
        if world.control.aborted:
            world.command = "retry"  # given up on the way, while pods were still bad
        elif world.progress is not None:
            world.command = "promote"  # steps that wait for a person
    world.run(25)
    assert world.settled(), (world.sizes, world.last)


@settings(max_examples=60, deadline=None)
@given(strategies(), st.integers(1, 6), st.sampled_from(["crashes", "stuck"]), st.integers(0, 3))
def test_a_candidate_that_does_not_work_leaves_the_stable_revision_alone(
    strategy: Strategy, wanted: int, health: Any, growth: int
) -> None:
    """An autoscaler under load must not fill the cluster with pods that crash, either."""
    if strategy.name == "Recreate":
        return
    world = started(strategy, wanted=wanted)
    world.health["b"] = health
    world.target = "b"
    world.run(60)
    world.wanted += growth
    world.run(60)
    least = world.wanted - strategy.limits.max_unavailable
    assert world.serving() >= least and world.weights["b"] == 0
    assert world.sizes["b"] <= max(strategy.limits.max_surge + strategy.limits.max_unavailable, wanted + growth)
    if strategy.limits.max_surge == 0 and strategy.deadline_s == 60.0 and strategy.name != "BlueGreen":
        assert world.sizes == {"a": world.wanted, "b": 0}, "the room is given back"
    before = dict(world.sizes)
    world.run(10)
    assert world.sizes == before, "and then nothing moves"


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 4), pauses, st.sampled_from([0.0, 30.0, 300.0]), st.sampled_from([60.0, 600.0]), st.integers(5, 400)
)
def test_a_blue_green_that_keeps_breaking_ends_and_never_gets_requests_before_it_is_steady(
    wanted: int, pause_s: float | None, keep_old_s: float, deadline_s: float, up_s: int
) -> None:
    """`check` sees each switch. At the end it has become the stable one (whole for as long as the old set was kept), or was aborted."""
    strategy = Strategy(
        "BlueGreen", Limits(1, 0), (Step(0, pause_s),), deadline_s=deadline_s, drain_s=0.0, keep_old_s=keep_old_s
    )
    world = started(strategy, wanted=wanted, proven_s=10.0, up_s=float(up_s))
    world.health["b"], world.target = "flaps", "b"
    first: float | None = None
    for _ in range(1200):
        world.run(1)
        if world.last is not None and world.last.hold == "StepPaused" and world.last.again_s is None:
            world.command = "resume"
        if world.stable == "b" or world.control.aborted:
            break
        if world.progress is not None and world.progress.broken_since is not None:
            first = first or world.progress.broken_since
    assert world.stable == "b" or world.control.aborted == "b", (world.sizes, world.last)
    if world.control.aborted and first is not None:
        assert world.now - first >= deadline_s, "it has its time to recover"
        world.run(40)
        assert world.sizes == {"a": wanted, "b": 0} and world.weights["a"] == 100


@settings(max_examples=60, deadline=None)
@given(strategies(), st.integers(1, 6), st.booleans())
def test_an_ordinary_rollout_keeps_the_minimum_at_every_moment(strategy: Strategy, wanted: int, ordered: bool) -> None:
    if strategy.name == "Recreate":
        return
    world = started(strategy, wanted=wanted, ordered=ordered)
    world.target = "b"
    least = max(wanted - strategy.limits.max_unavailable, 0)
    for _ in range(400):
        world.look()
        assert world.serving() >= least
        world.play()
        assert world.serving() >= least
        world.now += 7.0
        if world.last is not None and world.last.hold == "StepPaused" and world.last.again_s is None:
            world.command = "resume"
    assert world.settled()


@settings(max_examples=60, deadline=None)
@given(strategies(), st.integers(1, 5), st.integers(1, 30))
def test_an_abort_comes_back_to_what_served(strategy: Strategy, wanted: int, after: int) -> None:
    world = started(strategy, wanted=wanted)
    world.target = "b"
    world.run(after)
    if world.stable == "b":
        return
    world.command = "abort"
    world.run(80)
    assert world.sizes["a"] == wanted and world.sizes["b"] == 0 and world.weights["a"] == 100
    assert world.control.aborted == "b" and world.last is not None and world.last.hold == "Aborted"
    world.run(5)
    assert world.sizes["b"] == 0, "and stays there"
    world.target = "c"
    for _ in range(60):
        world.run(5)
        if world.progress is not None and world.last is not None and world.last.hold == "StepPaused":
            world.command = "promote"
    assert world.settled(), "another edit goes on"


@given(st.integers(1, 6), st.integers(0, 6))
def test_pods_lost_at_rest_start_no_rollout(wanted: int, lost: int) -> None:
    world = started(Strategy("RollingUpdate", Limits(1, 0)), wanted=wanted)
    world.pods["a"] = world.pods["a"][: max(wanted - lost, 0)] + [Pod() for _ in range(min(lost, wanted))]
    world.look()
    assert world.sizes == {"a": wanted} and world.stable == "a"
