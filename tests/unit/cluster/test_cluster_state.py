"""What `up` decides from what it finds, and that the record survives."""

import json
from pathlib import Path

import pytest

from cluster import state
from cluster.errors import StateError
from cluster.processes import Process
from cluster.state import ClusterState, MachineState, Phase, Verdict

BOOT = "boot-1"


def cluster(**changes: object) -> ClusterState:
    machines = {
        "cp": MachineState(Process(10, 100), {"etcd": Process(11, 101), "apiserver": Process(12, 102)}),
        "node-1": MachineState(Process(20, 200), {"kubelet": Process(21, 201)}),
    }
    values: dict[str, object] = {
        "boot": BOOT,
        "fingerprint": "f",
        "nodes": 1,
        "gpus": 0,
        "phase": Phase.READY,
        "machines": machines,
    }
    return ClusterState(**(values | changes))  # type: ignore[arg-type]


def judge(found: ClusterState | None, *, dead: set[int] = frozenset(), leftovers: bool = True) -> tuple[Verdict, str]:  # type: ignore[assignment]
    return state.judge(found, "f", BOOT, leftovers, lambda process: process.pid not in dead)


def test_a_healthy_cluster_is_reused() -> None:
    assert judge(cluster())[0] is Verdict.REUSE


def test_an_empty_machine_is_built_on() -> None:
    assert judge(None, leftovers=False)[0] is Verdict.BUILD


@pytest.mark.parametrize(
    ("found", "dead", "why"),
    [
        (None, set(), "without a record"),
        (cluster(phase=Phase.STARTING), set(), "cut off"),
        (cluster(boot="boot-0"), set(), "restarted"),
        (cluster(), {20}, "node-1"),
        (cluster(), {12}, "cp/apiserver"),
        (cluster(fingerprint="g"), set(), "another configuration"),
    ],
)
def test_everything_else_is_torn_down_and_built_anew(found: ClusterState | None, dead: set[int], why: str) -> None:
    verdict, reason = judge(found, dead=dead)
    assert verdict is Verdict.REBUILD
    assert why in reason


def test_a_dead_machine_is_named_once_not_with_all_its_daemons() -> None:
    assert state.dead_processes(cluster(), BOOT, lambda process: process.pid not in {20, 21}) == ["node-1"]


def test_after_a_reboot_of_the_host_every_process_is_dead() -> None:
    assert state.dead_processes(cluster(), "boot-2", lambda process: True) == ["cp", "node-1"]


def test_the_record_survives_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    found = cluster(created_dirs=["/a"], programs={"kubectl": "/k"}, daemons={"cp": {"etcd": ["etcd", "--x"]}})
    found.save(path)
    assert state.load(path) == found


def test_no_record_is_no_cluster(tmp_path: Path) -> None:
    assert state.load(tmp_path / "state.json") is None
    assert state.load(tmp_path / "no" / "state.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"format": 0}), json.dumps({"format": 1})])
def test_a_record_that_cannot_be_understood_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(StateError, match="cannot be understood"):
        state.load(path)
