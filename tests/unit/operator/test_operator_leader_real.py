"""Two operators on a real API server: one is stopped in the middle of its work, the other takes over, and there are never two that write."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from faulty_api import faulty_api
from operator_process import GROUP, OperatorProcess, operator_process
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

LOCAL = {"source": "file:///models/smollm2.gguf"}
MODELS = [f"m{number}" for number in range(10)]
READS = ("get", "list", "watch")


@pytest.fixture
def two(api: RealApi, tmp_path: Path) -> Iterator[tuple[OperatorProcess, OperatorProcess]]:
    """The first one leads."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with operator_process(api, tmp_path / "one") as one:
        one.until("the first one leads", lambda: leads(one))
        with operator_process(api, tmp_path / "other", beside=one) as other:
            other.until("the second one stands by", lambda: other.answers("/readyz"))
            yield one, other


def leads(one: OperatorProcess) -> bool:
    try:
        page = httpx.get(one.metrics, trust_env=False).text
    except httpx.HTTPError:
        return False
    found = re.search(r"^quire_operator_leader (\S+)$", page, re.MULTILINE)
    return found is not None and float(found[1]) == 1


def now() -> str:
    """As the audit log writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def writes(api: RealApi, one: OperatorProcess, *, after: str = "") -> list[tuple[str, str, str]]:
    """(when, what, where) of each write of one operator that was carried out. A renewal that was under way may come, and is refused: its version is old."""
    return [
        (event["requestReceivedTimestamp"], event["verb"], event["requestURI"])
        for event in api.audited(one.namespace)
        if event["user"]["username"] == one.user
        and event["verb"] not in READS
        and event["responseStatus"]["code"] < 300
        and event["requestReceivedTimestamp"] > after
    ]


def resize(bench: OperatorProcess, replicas: int) -> None:
    for name in MODELS:
        bench.api.patch(bench.path(GROUP, "llmdeployments", name), {"spec": {"replicas": replicas}})


def sizes(bench: OperatorProcess) -> list[int]:
    return [item["spec"]["replicas"] for item in bench.items("/apis/apps/v1", "deployments")]


def test_a_leader_that_stands_still_is_replaced_and_writes_nothing_when_it_wakes_up(
    api: RealApi, two: tuple[OperatorProcess, OperatorProcess], record_property: Any
) -> None:
    one, other = two
    assert leads(one) and not leads(other)
    for name in MODELS:
        one.create("LLMDeployment", "llmdeployments", name, {"model": LOCAL})
    one.until("it is in the middle of its work", lambda: len(sizes(one)) >= 2)
    one.process.send_signal(signal.SIGSTOP)
    try:
        stopped, started = now(), time.monotonic()
        other.until("the second one leads", lambda: leads(other))
        failover_s = time.monotonic() - started
        other.until("all of it is done", lambda: len(sizes(other)) == len(MODELS))
        resize(other, 2)
        woken = now()
    finally:
        one.process.send_signal(signal.SIGCONT)
    resize(other, 3)
    other.until("the edits are acted on", lambda: sizes(other) == [3] * len(MODELS))
    looks = one.looks()
    resize(other, 4)
    one.until("the first one follows them", lambda: one.looks() >= looks + len(MODELS))
    other.until("the second one acts on them", lambda: sizes(other) == [4] * len(MODELS))
    assert failover_s < 20, failover_s
    assert writes(api, one, after=woken) == []
    assert not leads(one) and leads(other)
    first = min(when for when, _, _ in writes(api, other))
    assert all(when < first for when, _, _ in writes(api, one)) and first > stopped
    record_property("failover_s", failover_s)
    print(f"failover after {failover_s:.1f} s")


def test_a_leader_that_ends_is_replaced_at_once(
    api: RealApi, two: tuple[OperatorProcess, OperatorProcess], record_property: Any
) -> None:
    one, other = two
    one.create("LLMDeployment", "llmdeployments", "m0", {"model": LOCAL})
    one.until("the workload", lambda: sizes(one) == [1])
    started = time.monotonic()
    one.stop()
    stop_s = time.monotonic() - started
    other.until("the second one leads", lambda: leads(other))
    handover_s = time.monotonic() - started
    other.api.patch(other.path(GROUP, "llmdeployments", "m0"), {"spec": {"replicas": 2}})
    other.until("it acts", lambda: sizes(other) == [2])
    assert stop_s < 5, f"kopf alone would wait as long as that: {stop_s}"
    assert handover_s < 10, f"it would have run out by itself after 12 s: {handover_s}"
    assert "Traceback" not in one.log.read_text()
    record_property("stop_s", stop_s)
    print(f"ended after {stop_s:.1f} s, handover after {handover_s:.1f} s")


@pytest.mark.timing
def test_a_slow_api_server_costs_no_lead(api: RealApi, tmp_path: Path) -> None:
    """Each answer takes 2.5 s; so a renewal is done within 5 s of the one before, and the lead lasts 9."""
    with faulty_api(api) as between, operator_process(api, tmp_path, server=between.url) as one:
        one.until("it leads", lambda: leads(one))
        between.delay_s = 2.5
        renewals: set[str] = set()

        def renewed() -> bool:
            lease = api.get(one.path("/apis/coordination.k8s.io/v1", "leases", "quire-operator"))
            assert lease is not None and lease["spec"]["leaseTransitions"] == 1
            renewals.add(lease["spec"]["renewTime"])
            return len(renewals) > 10

        one.until("ten renewals", renewed)
        between.delay_s = 0.0
        log = one.log.read_text()
        assert log.count("leads now") == 1 and "does not lead" not in log
