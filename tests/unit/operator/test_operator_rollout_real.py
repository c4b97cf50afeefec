"""Rollouts by the operator's process on a real API server: sizes, shares and commands as objects. Pods are played here, there is no kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_process import operator_process
from operator_stage import ONE_STEP, Stage
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

SWITCH = {"strategy": "BlueGreen", "blueGreen": {"pause": "indefinite", "scaleDownDelay": "1s"}, "drainTimeout": "0s"}


@pytest.fixture
def stage(api: RealApi, tmp_path: Path) -> Iterator[Stage]:
    with operator_process(api, tmp_path) as bench:
        made = Stage(bench)
        yield made
        assert "Traceback" not in bench.log.read_text()


def test_canary_abort_retry_and_promote(stage: Stage) -> None:
    old = stage.create(ONE_STEP)
    kept = stage.uids()
    stage.edit(engine={"maxNumSeqs": 4})
    stage.until("the step", lambda: stage.reason("Progressing") == "StepPaused")
    new = str(stage.status()["updatedRevision"])
    assert stage.shares() == {new: 40, old: 60} and stage.sizes() == {old: 2, new: 1}
    assert stage.status()["rollout"]["step"] == 1 and stage.status()["revisions"][0]["track"] == "candidate"

    stage.command("abort")
    stage.until("the way back", lambda: stage.reason("Progressing") == "RolloutAborted")
    assert stage.shares()[old] == 100 and stage.sizes() == {old: 2, new: 0} and kept <= stage.uids()
    assert stage.status()["control"]["aborted"] == new and stage.reason("Ready") == "RolloutAborted"
    taken = [shares for shares in stage.shares_seen if shares.get(new) == 0 and shares.get(old) == 100]
    assert taken, "requests were taken back while the candidate's pod was still there"

    stage.command("retry")
    stage.until("the step again", lambda: stage.reason("Progressing") == "StepPaused")
    stage.command("promote")
    stage.until("the end", lambda: stage.status().get("currentRevision") == new and "rollout" not in stage.status())
    assert stage.sizes() == {old: 0, new: 2}
    assert stage.shares() in ({new: 100}, {new: 100, old: 0}), "as long as a pod of it is left it is listed"
    assert "quire.dev/rollout" not in stage.body()["metadata"].get("annotations", {})
    assert "control" not in stage.status()


def test_blue_green_switches_at_once_and_a_new_edit_supersedes(stage: Stage) -> None:
    old = stage.create(SWITCH)
    stage.edit(engine={"maxNumSeqs": 4})
    stage.until("the whole set", lambda: stage.reason("Progressing") == "StepPaused")
    superseded = str(stage.status()["updatedRevision"])
    assert stage.shares() == {superseded: 0, old: 100} and stage.sizes() == {old: 2, superseded: 2}
    stage.edit(engine={"maxNumSeqs": 5})
    stage.until("another revision", lambda: stage.status()["updatedRevision"] != superseded)
    stage.until("its whole set", lambda: stage.reason("Progressing") == "StepPaused")
    new = str(stage.status()["updatedRevision"])
    assert stage.sizes() == {old: 2, superseded: 0, new: 2} and stage.shares() == {new: 0, old: 100}
    stage.command("resume")
    stage.until("the end", lambda: stage.status().get("currentRevision") == new and "rollout" not in stage.status())
    assert stage.sizes() == {old: 0, superseded: 0, new: 2}
    assert all(set(shares.values()) <= {0, 100} for shares in stage.shares_seen), "never a mixture"


def test_a_rolling_update_and_the_way_back(stage: Stage) -> None:
    old = stage.create({"drainTimeout": "0s"}, replicas=3)
    stage.edit(engine={"maxNumSeqs": 4})
    stage.until("the end", lambda: stage.status()["currentRevision"] != old and "rollout" not in stage.status())
    new = str(stage.status()["currentRevision"])
    assert stage.sizes() == {old: 0, new: 3}
    stage.edit(engine={"maxNumSeqs": None})
    stage.until("the old one", lambda: stage.status()["currentRevision"] == old and "rollout" not in stage.status())
    assert stage.sizes() == {old: 3, new: 0}, "its workload is used again"


def test_recreate_ends_all_before_one_begins(stage: Stage) -> None:
    old = stage.create({"strategy": "Recreate", "drainTimeout": "0s"})
    stage.edit(engine={"maxNumSeqs": 4})
    stage.bench.until("old ones are asked to end", lambda: stage.sizes()[old] == 0)
    assert set(stage.sizes().values()) == {0} and len(stage.uids()) == 2, "their pods are still there"
    stage.until("the end", lambda: stage.status()["currentRevision"] != old and "rollout" not in stage.status())
