"""The operator's process when its API server answers wrongly, late or not at all; a proxy in front of the real one does that. Pods are played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from faulty_api import Asked, Fault, FaultyApi, faulty_api
from operator_process import operator_process
from operator_stage import Stage
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

IN_TURN = (
    Fault(409),
    Fault(lost=True),
    Fault(500),
    Fault(429, {"Retry-After": "1"}),
    Fault(503),
)


@pytest.fixture
def between(api: RealApi) -> Iterator[FaultyApi]:
    with faulty_api(api) as made:
        yield made


@pytest.fixture
def stage(api: RealApi, tmp_path: Path, between: FaultyApi) -> Iterator[Stage]:
    with operator_process(api, tmp_path, server=between.url) as bench:
        yield Stage(bench)


def once_for_each(between: FaultyApi, *, writes: bool) -> None:
    """Each path meets the next fault of all once, when it is written (or read) for the first time."""
    met: Counter[tuple[str, str]] = Counter()

    def choose(asked: Asked) -> Fault | None:
        key = (asked.method, asked.path)
        # The Lease is looked after by tests of its own.
        if asked.writes is not writes or asked.watch is not None or "/leases" in asked.path or met[key]:
            return None
        met[key] += 1
        return IN_TURN[sum(met.values()) % len(IN_TURN)]

    between.choose = choose


def test_a_rollout_arrives_although_each_write_fails_once(stage: Stage, between: FaultyApi) -> None:
    once_for_each(between, writes=True)
    old = stage.create({"drainTimeout": "0s"})
    stage.edit(engine={"maxNumSeqs": 4})
    stage.until("the new revision", lambda: stage.status().get("currentRevision") != old
                and stage.reason("Progressing") == "Complete")  # fmt: skip
    assert {(fault.status, fault.lost) for _, fault in between.met} == {(each.status, each.lost) for each in IN_TURN}
    new = str(stage.status()["currentRevision"])
    assert stage.sizes() == {old: 0, new: 2}, "and what was done without an answer was not done twice"
    assert all(sum(shares.values()) in (0, 100) for shares in stage.shares_seen)
    log = stage.bench.log.read_text()
    assert "the API server does not answer well" in log and "failed; it is tried again" not in log, "a line, no trace"

    # Reads fail the same way, and each answer takes longer than it should (a store that is slow).
    between.met.clear()
    once_for_each(between, writes=False)
    between.delay_s = 0.3
    stage.edit(replicas=3)
    stage.until("three", lambda: stage.sizes() == {old: 0, new: 3})
    assert between.met


def test_watches_that_break_or_fall_silent_and_a_server_that_is_gone(stage: Stage, between: FaultyApi) -> None:
    revision = stage.create({"drainTimeout": "0s"})
    between.down = True
    assert between.cut() > 4, "watches and the client"
    stage.edit(replicas=3)  # by somebody who asks the server itself
    stage.bench.until("it says so", lambda: "cannot be listed" in stage.bench.log.read_text())
    between.down = False
    stage.until("three", lambda: stage.sizes() == {revision: 3})

    between.deaf = True  # connections stand, nothing comes: what is missed is found by the next list of all
    stage.edit(replicas=1)
    stage.until("one", lambda: stage.sizes() == {revision: 1})
    between.deaf = False
    assert stage.bench.process.poll() is None and stage.bench.answers("/healthz")


def test_without_the_small_kinds_it_works_and_begins_anew_when_they_come(
    api: RealApi, tmp_path: Path, between: FaultyApi
) -> None:
    """Paths that nobody serves are refused in plain text."""

    def choose(asked: Asked) -> Fault | None:
        small = asked.path.endswith(("/modelcaches", "/llmadapters"))
        return Fault(404, plain=True) if small and not asked.writes else None

    between.choose = choose
    with operator_process(api, tmp_path, server=between.url) as bench:
        bench.create("LLMDeployment", "llmdeployments", "smol", {"model": {"source": "file:///m"}})
        bench.until("the workload", lambda: bench.items("/apis/apps/v1", "deployments"))
        looks = bench.looks()
        bench.until("it goes on", lambda: bench.looks() > looks + 2)
        said = bench.log.read_text()
        assert "llmadapters.quire.dev cannot be listed: without them" in said and "Traceback" not in said
        between.choose = lambda asked: None
        bench.until("it ends, to begin anew with them", lambda: bench.process.poll() == 0)
