"""`kubectl llmd status`, `rollout history` and `logs`: what is shown of which objects."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console

from operator_kit import body, pod
from quire_operator import labels
from quire_operator.plugin import screen
from quire_operator.plugin.follow import Stream, streams_of
from quire_operator.plugin.history import history_of
from quire_operator.plugin.picture import picture_of
from quire_operator.policy import to_seconds
from quire_operator.spec import parse_status

STARTED = "2026-01-01T00:00:00Z"
NOW = to_seconds("2026-01-01T00:05:00Z")


def condition(kind: str, status: str, reason: str, generation: int = 1) -> dict[str, Any]:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": f"{reason} it is",
        "lastTransitionTime": STARTED,
        "observedGeneration": generation,
    }


def rolling(strategy: str = "Canary") -> dict[str, Any]:
    """Two pods of `old`, one of `new` with 40 % of the requests."""
    return {
        "observedGeneration": 1,
        "phase": "Progressing",
        "summary": "2/2",
        "url": "http://quire-router.quire-system/v1",
        "currentRevision": "old",
        "updatedRevision": "new",
        "conditions": [condition("Ready", "False", "StepPaused"), condition("Progressing", "True", "StepPaused")],
        "revisions": [
            {"name": "new", "track": "candidate", "replicas": 1, "ready": 1, "weight": 40},
            {"name": "old", "track": "stable", "replicas": 2, "ready": 2, "weight": 60},
        ],
        "rollout": {
            "revision": "new",
            "strategy": strategy,
            "step": 3,
            "of": 2,
            "startedAt": STARTED,
            "progressedAt": STARTED,
            "message": "40 % of the requests",
        },
    }


def made(name: str, revision: str, **more: Any) -> dict[str, Any]:
    found = pod(name, revision, **more)
    found["metadata"]["creationTimestamp"] = STARTED
    return found


def drawn(renderable: Any, width: int = 200) -> str:
    console = Console(width=width, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_a_rollout_has_a_bar_for_pods_and_one_for_requests() -> None:
    picture = picture_of(body({"replicas": 2}, status=rolling()), [made("p-1", "new")], now=NOW)
    bar = picture.bar
    assert bar is not None and (bar.ready, bar.wanted, bar.weight, bar.age_s) == (1, 2, 40, 300.0)
    assert (bar.step, bar.of) == (2, 2), "at its end the step is the last one"
    text = drawn(screen.one(picture))
    assert "Canary to new, step 2 of 2, for 5m" in text and "1 of 2 ready" in text and "40 %" in text
    assert f"pods      {'█' * 15}{'░' * 15}  " in text and f"requests  {'█' * 12}{'░' * 18}  " in text
    assert "StepPaused it is" in text and "p-1" in text and not picture.ready


def test_without_weights_there_is_no_bar_of_requests() -> None:
    picture = picture_of(body({"replicas": 2}, status=rolling("RollingUpdate")), [], now=NOW)
    assert picture.bar is not None and picture.bar.weight is None
    assert "requests  " not in drawn(screen.one(picture))


def test_on_the_way_back_pods_alone_tell_how_far_it_is() -> None:
    status = rolling()
    status["rollout"] = {**status["rollout"], "revision": "old", "step": None, "of": None}
    bar = picture_of(body({"replicas": 2}, status=status), [], now=NOW).bar
    assert bar is not None and (bar.revision, bar.ready, bar.weight, bar.step) == ("old", 2, None, None)


def test_a_list_has_a_line_for_each() -> None:
    picture = picture_of(body({"replicas": 2}, status=rolling()), [], now=NOW)
    [head, line] = drawn(screen.many([picture]), width=80).splitlines()
    assert head.split() == ["NAME", "PHASE", "READY", "REVISION", "ROLLOUT", "WHY"]
    assert line.split() == ["smol", "Progressing", "2/2", "new", "Canary", "2/2", "StepPaused"]


@pytest.mark.parametrize(("generation", "condition_generation", "ready"), [(1, 1, True), (2, 1, False), (2, 2, True)])
def test_ready_is_ready_for_the_newest_edit(generation: int, condition_generation: int, ready: bool) -> None:
    status = {
        "observedGeneration": condition_generation,
        "conditions": [condition("Ready", "True", "Answering", condition_generation)],
    }
    picture = picture_of(body(generation=generation, status=status), [], now=NOW)
    assert picture.ready is ready
    assert ("has not seen the last edit" in drawn(screen.one(picture))) is not ready


def test_what_no_operator_has_seen_is_shown_too() -> None:
    picture = picture_of(body(), [], now=NOW)
    assert not picture.ready and picture.phase == "Unseen" and picture.summary == "0/1"
    assert "file:///models/smollm2.gguf" in drawn(screen.one(picture))


def test_json_has_the_names_of_the_status() -> None:
    told = json.loads(json.dumps(picture_of(body(status=rolling()), [made("p-1", "new")], now=NOW).to_json()))
    assert told["ready"] is False and told["revisions"][0]["weight"] == 40
    assert told["conditions"][0]["lastTransitionTime"] == STARTED
    assert told["pods"][0]["name"] == "p-1" and told["rollout"]["wanted"] == 1


RUNNING = {"running": {"startedAt": STARTED}}
CRASHED = {"terminated": {"exitCode": 1, "message": "quire: error: no room"}}


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ({"ready": True}, "Ready"),
        ({"ready": True, "terminating": True}, "Terminating"),
        ({"ready": False}, "Loading"),
        ({"ready": False, "status": {"phase": "Pending"}}, "Pending"),
        ({"ready": False, "status": {"initContainerStatuses": [{"name": "fetch", "state": RUNNING}]}}, "Init:fetch"),
        (
            {
                "ready": False,
                "status": {"containerStatuses": [{"name": "engine", "restartCount": 4, "state": CRASHED}]},
            },
            "CrashLoopBackOff",
        ),
    ],
)
def test_the_state_of_a_pod_is_one_word(more: dict[str, Any], state: str) -> None:
    [line] = picture_of(body(), [made("p-1", "abc", **more)], now=NOW).pods
    assert line.state == state and line.age_s == 300.0
    if state == "CrashLoopBackOff":
        assert line.restarts == 4 and line.why.endswith("no room")


def workload(revision: str, created: str, *args: str, image: str = "quire:1") -> dict[str, Any]:
    marks = {labels.DEPLOYMENT: "smol", labels.REVISION: revision}
    engine = {"name": "engine", "image": image, "args": ["serve", "/m", *args]}
    template = {"metadata": {"labels": marks}, "spec": {"containers": [engine]}}
    metadata = {"name": f"smol-{revision}", "labels": marks, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"replicas": 1, "template": template}}


def test_history_tells_what_each_revision_changed() -> None:
    status = parse_status({"status": rolling()})
    workloads = [
        workload("new", "2026-01-01T00:04:00Z", "--swap-space=1Gi", "--max-num-seqs=4", image="quire:2"),
        workload("old", STARTED, "--max-num-seqs=8", "--enforce-eager"),
    ]
    new, old = history_of(status, workloads, now=NOW)
    assert (new.name, new.track, old.name, old.track, old.changes) == ("new", "candidate", "old", "stable", ())
    assert new.changes == (
        "- engine --enforce-eager",
        "engine --max-num-seqs: 8 -> 4",
        "+ engine --swap-space: 1Gi",
        "spec.containers[engine].image: quire:1 -> quire:2",
    )
    assert "engine --max-num-seqs: 8 -> 4" in drawn(screen.revisions([new, old]))


def test_history_reads_leader_worker_sets_too() -> None:
    status = parse_status({"status": rolling()})
    groups = [workload("old", STARTED, "--max-num-seqs=8"), workload("new", "2026-01-01T00:04:00Z", "--max-num-seqs=4")]
    for each in groups:
        pod = each["spec"].pop("template")
        each["spec"]["leaderWorkerTemplate"] = {"size": 2, "leaderTemplate": pod, "workerTemplate": {}}
    new, old = history_of(status, groups, now=NOW)
    assert (new.name, new.changes, old.name) == ("new", ("engine --max-num-seqs: 8 -> 4",), "old")


def started(name: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, "restartCount": 0, **more}


WAITING = {"waiting": {"reason": "PodInitializing"}}
DONE = {"terminated": {"exitCode": 0}}


@pytest.mark.parametrize(
    ("first", "engine", "container"),
    [
        (started("fetch", RUNNING), started("engine", WAITING), "fetch"),
        (started("fetch", CRASHED), started("engine", WAITING), "fetch"),
        (started("fetch", WAITING), started("engine", WAITING), None),
        (started("fetch", WAITING, lastState=CRASHED), started("engine", WAITING), "fetch"),
        (started("fetch", DONE), started("engine", WAITING), None),
        (started("fetch", DONE), started("engine", RUNNING), "engine"),
        (started("fetch", DONE), started("engine", WAITING, lastState=CRASHED), "engine"),
    ],
)
def test_logs_are_of_the_container_that_matters(
    first: dict[str, Any], engine: dict[str, Any], container: str | None
) -> None:
    status = {"initContainerStatuses": [first], "containerStatuses": [started("beside", RUNNING), engine]}
    found = streams_of([made("p-1", "abc", status=status)])
    assert found == (() if container is None else (Stream("p-1", container, 0),))


def test_a_sidecar_among_the_init_containers_is_passed_over() -> None:
    status = {"initContainerStatuses": [started("proxy", RUNNING)], "containerStatuses": [started("engine", RUNNING)]}
    found = made("p-1", "abc", status=status)
    found["spec"] = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}]}
    assert streams_of([found]) == (Stream("p-1", "engine", 0),)


def test_previous_logs_are_of_what_ended() -> None:
    alive = {"containerStatuses": [started("engine", RUNNING)]}
    again = {"containerStatuses": [started("engine", RUNNING, lastState=CRASHED) | {"restartCount": 2}]}
    pods = [made("p-1", "abc", status=alive), made("p-2", "abc", status=again)]
    assert streams_of(pods, previous=True) == (Stream("p-2", "engine", 2),)
