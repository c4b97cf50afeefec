"""A watch that dies without an error is noticed."""

from __future__ import annotations

from quire_operator.health import WatchMonitor
from quire_operator.spec import Key

A, B = Key("demo", "a"), Key("demo", "b")


def test_a_delivered_version_is_fine() -> None:
    monitor = WatchMonitor(grace_s=30)
    monitor.delivered(A, "7")
    monitor.listed({A: "7"}, at=0)
    assert monitor.dead() is None


def test_a_listed_version_that_never_comes_proves_a_dead_watch() -> None:
    monitor = WatchMonitor(grace_s=30)
    monitor.delivered(A, "7")
    monitor.listed({A: "8"}, at=0)
    monitor.listed({A: "9"}, at=20)
    assert monitor.dead() is None
    monitor.listed({A: "9"}, at=31)
    assert "demo/a" in (monitor.dead() or "")


def test_a_watch_that_is_ahead_of_a_list_is_not_dead() -> None:
    monitor = WatchMonitor(grace_s=30)
    monitor.delivered(A, "8")
    monitor.listed({A: "7"}, at=0)  # the list was answered before the change that the watch has delivered
    assert monitor.dead() is None
    monitor.listed({A: "8"}, at=60)
    monitor.listed({A: "8"}, at=120)
    assert monitor.dead() is None


def test_a_late_delivery_clears_it() -> None:
    monitor = WatchMonitor(grace_s=30)
    monitor.listed({A: "8"}, at=0)
    monitor.delivered(A, "8")
    monitor.listed({A: "8"}, at=1000)
    assert monitor.dead() is None


def test_a_deleted_object_is_not_waited_for() -> None:
    monitor = WatchMonitor(grace_s=30)
    monitor.listed({A: "8", B: "1"}, at=0)
    monitor.delivered(B, "1")
    monitor.listed({B: "1"}, at=10)
    monitor.listed({B: "1"}, at=1000)
    assert monitor.dead() is None
