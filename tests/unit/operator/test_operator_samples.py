"""Value, missing, stale: the three states a metric can have, and who gets to see them."""

from __future__ import annotations

from operator_kit import KEY, pod
from quire_operator.observation import pod_views
from quire_operator.probe import Samples
from quire_operator.probe.samples import TOLD_AFTER, Target

QUEUE, CACHE = "quire_scheduler_queue_size", "quire_gpu_cache_usage"


def samples(*names: str, ready: bool = True) -> Samples:
    table = Samples(stale_after_s=10)
    table.set_pods(KEY, pod_views([pod(name, "r", ready=ready) for name in names]))
    return table


def target(name: str) -> Target:
    return Target(KEY, name, "198.18.1.9")


def test_the_mean_is_over_the_pods_that_answer_and_the_others_are_named() -> None:
    table = samples("a", "b", "c")
    table.record(target("a"), {QUEUE: 2.0, CACHE: 0.2}, at=100, wall=0)
    table.record(target("b"), {QUEUE: 4.0, CACHE: 0.4}, at=100, wall=0)
    for _ in range(TOLD_AFTER):
        table.record(target("c"), None, at=100, wall=0)
    queue, cache = table.readings(KEY, at=101)
    assert (queue.name, queue.value, queue.state, queue.silent) == ("queueSize", 3.0, "Fresh", ("c",))
    assert cache.value is not None and abs(cache.value - 0.3) < 1e-9


def test_missing_is_neither_zero_nor_stale() -> None:
    table = samples("a")
    (queue, _) = table.readings(KEY, at=0)
    assert (queue.value, queue.state, queue.tried) == (None, "Missing", False)
    for _ in range(TOLD_AFTER):
        table.record(target("a"), {CACHE: 0.5}, at=1, wall=1)
    (queue, cache) = table.readings(KEY, at=1)
    assert (queue.value, queue.state, queue.tried) == (None, "Missing", True)
    assert cache.state == "Fresh"
    assert list(table.select("demo", QUEUE, at=1)) == []


def test_a_pod_that_has_just_become_ready_is_not_missed_yet() -> None:
    """Before it was ready nothing answered, and the first scrape after that has not been."""
    table = samples("a", ready=False)
    for _ in range(9):
        table.record(target("a"), None, at=1, wall=1)
    table.set_pods(KEY, pod_views([pod("a", "r")]))
    for _ in range(TOLD_AFTER - 1):
        assert [(one.tried, one.silent) for one in table.readings(KEY, at=1)] == [(False, ())] * 2
        table.record(target("a"), None, at=1, wall=1)
    assert not table.readings(KEY, at=1)[0].tried
    table.record(target("a"), None, at=1, wall=1)
    (queue, _) = table.readings(KEY, at=1)
    assert (queue.state, queue.tried, queue.silent) == ("Missing", True, ("a",))


def test_a_new_pod_beside_others_is_not_called_silent_at_once() -> None:
    table = samples("a")
    table.record(target("a"), {QUEUE: 1.0, CACHE: 0.1}, at=1, wall=1)
    table.set_pods(KEY, pod_views([pod("a", "r"), pod("b", "r")]))
    assert [(one.state, one.silent) for one in table.readings(KEY, at=1)] == [("Fresh", ())] * 2
    for _ in range(TOLD_AFTER):
        table.record(target("b"), None, at=1, wall=1)
    assert table.readings(KEY, at=1)[0].silent == ("b",)


def test_a_silent_pod_turns_stale_and_leaves_the_metrics_api() -> None:
    table = samples("a")
    table.record(target("a"), {QUEUE: 7.0}, at=100, wall=5)
    table.record(target("a"), None, at=108, wall=13)
    assert [name for name, _, _ in table.select("demo", QUEUE, at=110)] == ["a"]
    assert list(table.select("demo", QUEUE, at=110.1)) == []
    assert table.readings(KEY, at=110.1)[0].state == "Stale"


def test_pods_that_go_are_forgotten_and_pods_that_stay_keep_their_values() -> None:
    table = samples("a", "b")
    for name in ("a", "b"):
        table.record(target(name), {QUEUE: 1.0}, at=100, wall=0)
    table.set_pods(KEY, pod_views([pod("b", "r"), pod("a", "r", terminating=True)]))
    assert [name for name, _, _ in table.select("demo", QUEUE, at=101)] == ["b"]
    table.record(target("a"), {QUEUE: 9.0}, at=101, wall=0)
    assert [name for name, _, _ in table.select("demo", QUEUE, at=101)] == ["b"]
    table.forget(KEY)
    assert table.targets() == () and table.keys() == ()


def test_unready_pods_are_asked_but_not_counted() -> None:
    table = samples("a", ready=False)
    assert [each.pod for each in table.targets()] == ["a"]
    assert table.readings(KEY, at=0)[0].silent == ()


def test_other_namespaces_see_nothing() -> None:
    table = samples("a")
    table.record(target("a"), {QUEUE: 1.0}, at=100, wall=0)
    assert list(table.select("other", QUEUE, at=100)) == []
