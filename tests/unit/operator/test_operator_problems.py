"""Reasons lifted from pods: what a user would find with kubectl describe and logs, in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_kit import pod
from quire_operator.api import Condition
from quire_operator.observation import PodView, pod_views
from quire_operator.status import problem_of
from quire_operator.status.problems import last_line


def container(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "containerStatuses": [{"name": "engine", "image": "quire/runtime:x", "ready": False, "state": state, **more}]
    }


CRASH = {"exitCode": 1, "reason": "Error", "message": "loading\nquire: error: /models/x.gguf does not exist\n"}

TOO_SMALL = (
    "failed to create containerd task: runc create failed: container init was OOM-killed (memory limit too low?)"
)

CASES = [
    (
        {
            "conditions": [
                {"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient nvidia.com/gpu"}
            ]
        },
        "Unschedulable",
        "add a node that fits: 0/2 nodes: Insufficient nvidia.com/gpu",
        False,
    ),
    (container({"waiting": {"reason": "ErrImagePull", "message": "not found"}}), "ImagePullBackOff", "not found", True),
    (
        container({"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}),
        "ImagePullBackOff",
        "quire/runtime:x cannot be pulled; check its name, the registry and spec.imagePullSecrets: Back-off",
        True,
    ),
    (
        container({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}),
        "CreateContainerConfigError",
        'secret "hf" not found',
        True,
    ),
    (
        container({"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": CRASH}),
        "CrashLoopBackOff",
        "exit code 1: /models/x.gguf does not exist",
        True,
    ),
    (container({"terminated": CRASH}), "CrashLoopBackOff", "/models/x.gguf does not exist", True),
    (
        container({"running": {}}, started=False, lastState={"terminated": CRASH}),
        "CrashLoopBackOff",
        "/models/x.gguf does not exist",
        True,
    ),
    (
        container(
            {"waiting": {"reason": "CrashLoopBackOff"}},
            lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        ),
        "OOMKilled",
        "more memory than its limit",
        True,
    ),
    (
        container({"waiting": {"reason": "RunContainerError", "message": TOO_SMALL}}),
        "OOMKilled",
        "raise spec.resources.limits.memory",
        True,
    ),
    (
        container({"terminated": {"exitCode": 128, "reason": "StartError", "message": TOO_SMALL}}),
        "OOMKilled",
        "raise spec.resources.limits.memory",
        True,
    ),
    (
        container({"running": {}}, lastState={"terminated": {"exitCode": 137, "reason": "Error"}}),
        "CrashLoopBackOff",
        "exit code 137 (killed: its memory was short, or its liveness probe failed)",
        True,
    ),
    (
        {
            **container({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, started=True),
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:05:00Z"}],
        },
        "ReadinessProbeFailing",
        "readiness probe fails",
        False,
    ),
    (container({"terminated": {"exitCode": 0, "reason": "Completed"}}), "ContainerExited", "ended by itself", False),
    (
        {
            "initContainerStatuses": [
                {"name": "fetch", "state": {"terminated": {"exitCode": 3, "message": "no space left"}}}
            ]
        },
        "CrashLoopBackOff",
        "init container fetch ended with exit code 3: no space left",
        True,
    ),
]


@pytest.mark.parametrize(
    ("status", "reason", "words", "fatal"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_reasons(status: dict[str, Any], reason: str, words: str, fatal: bool) -> None:
    problem = problem_of(pod_views([pod("p", "r", ready=False, status=status)]), "r")
    assert problem is not None
    assert (problem.reason, problem.fatal) == (reason, fatal)
    assert words in problem.message and "p" in problem.message and "\n" not in problem.message


def test_a_pod_that_loads_is_no_problem() -> None:
    status = container({"running": {}}, started=False)
    assert problem_of(pod_views([pod("p", "r", ready=False, status=status)]), "r") is None
    passed = {
        **container({"running": {"startedAt": "2026-01-01T00:00:05Z"}}, started=True),
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:01Z"}],
    }
    assert problem_of(pod_views([pod("p", "r", ready=False, status=passed)]), "r") is None
    creating = container({"waiting": {"reason": "ContainerCreating"}})
    assert problem_of(pod_views([pod("p", "r", ready=False, status=creating)]), "r") is None


def test_it_is_cleared_by_recovery_and_by_deletion() -> None:
    crashed = container({"running": {}}, started=True, lastState={"terminated": CRASH})
    recovered = {**crashed, "containerStatuses": [{**crashed["containerStatuses"][0], "ready": True}]}
    conditions = {"conditions": [{"type": "Ready", "status": "True"}]}
    assert problem_of(pod_views([pod("p", "r", status={**recovered, **conditions})]), "r") is None
    assert problem_of(pod_views([pod("p", "r", ready=False, terminating=True, status=crashed)]), "r") is None


def test_the_wanted_revision_speaks_first_and_fatal_before_mild() -> None:
    unready = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]}
    crashed = container({"terminated": CRASH})
    pods = pod_views(
        [
            pod("a-old", "old", ready=False, status=crashed),
            pod("b-new", "new", ready=False, status=unready),
            pod("c-new", "new", ready=False, status=crashed),
        ]
    )
    problem = problem_of(pods, "new")
    assert problem is not None and "c-new" in problem.message


def killed(state: str, reason: str, code: int = 137, message: str = "") -> PodView:
    ended = {"exitCode": code, "reason": reason, "message": message}
    told = (
        container({"terminated": ended})
        if state == "terminated"
        else container(
            {state: {"reason": "CrashLoopBackOff"} if state == "waiting" else {}}, lastState={"terminated": ended}
        )
    )
    return pod_views([pod("p", "r", ready=False, status=told)])[0]


def test_a_kill_is_told_when_its_runtime_has_had_time_to_say_why() -> None:
    """containerd hears of the end of a container, and of its lack of memory, in whatever order."""
    once = killed("terminated", "Error")
    first = problem_of((once,), "r")
    assert first is not None and (first.reason, first.fatal) == ("Killed", False), (
        "what is said of it when it runs again is final"
    )
    never = replace(once, body={**once.body, "spec": {"restartPolicy": "Never"}})
    problem = problem_of((never,), "r")
    assert problem is not None and problem.reason == "CrashLoopBackOff", "the pod of a Job is not started again"


def test_a_container_that_was_short_of_memory_is_so_at_its_next_end_too() -> None:
    first = problem_of((killed("waiting", "OOMKilled"),), "r")
    assert first is not None
    before = told(first.reason, first.message)
    server = "quire: error: the engine process was killed by SIGKILL (out of memory?)"
    for one in (killed("terminated", "Error"), killed("waiting", "Error"), killed("running", "Error", 1, server)):
        assert problem_of((one,), "r", before) == first
        for other in (
            told("OOMKilled", "pod other, container engine was killed"),
            told("Loading", first.message),
            None,
        ):
            assert problem_of((one,), "r", other) == problem_of((one,), "r") != first
    broken = killed("waiting", "Error", 1, "quire: error: broken file")
    assert problem_of((broken,), "r", before) == problem_of((broken,), "r"), "it has ended for another reason"


def told(reason: str, message: str) -> Condition:
    """As the condition Ready."""
    return Condition(
        type="Ready",
        status="False",
        reason=reason,
        message=message,
        last_transition_time="2026-01-01T00:00:00Z",
        observed_generation=1,
    )


def test_last_line() -> None:
    assert last_line("Traceback\n  File x\nValueError: bad\n\n") == "ValueError: bad"
    assert last_line(None) == ""
