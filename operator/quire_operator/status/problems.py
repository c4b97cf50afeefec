"""Why a pod is not ready, lifted out of it: one reason, one sentence. Pure.

A reason stays the same while its cause does: a container that crashes is CrashLoopBackOff whether it waits, has
just ended or runs once more, until it is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from quire_operator.observation import PodView, find_condition

_PULL = frozenset({"ImagePullBackOff", "ErrImagePull", "ImageInspectError", "RegistryUnavailable"})
_CANNOT_START = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_RUNTIME_PREFIX = "quire: error: "


@dataclass(frozen=True)
class Problem:
    """`reason` for programs, `message` for people; `fatal` when waiting alone will not help."""

    reason: str
    message: str
    fatal: bool = False


def problem_of(pods: tuple[PodView, ...], revision: str) -> Problem | None:
    """The most telling problem: of the wanted revision first, fatal ones first, then by pod name."""
    found = [
        (pod.revision != revision, not problem.fatal, pod.name, problem)
        for pod in pods
        if not pod.terminating and not pod.ready
        for problem in _problems(pod)
    ]
    return min(found, key=lambda item: item[:3])[3] if found else None


def _problems(pod: PodView) -> Iterator[Problem]:
    status = pod.body.get("status", {})
    scheduled = find_condition(status, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        text = f"pod {pod.name} cannot be scheduled; change spec.resources or spec.template, or add a node that fits"
        yield Problem("Unschedulable", _with(text, scheduled.get("message", "no reason given")))
        return
    for kind, where in (("initContainerStatuses", "init container"), ("containerStatuses", "container")):
        for container in status.get(kind) or ():
            full_name = f"pod {pod.name}, {where} {container['name']}"
            problem = _container_problem(full_name, container) or _probe_problem(full_name, container, status)
            if problem is not None:
                yield problem


def _container_problem(where: str, container: Mapping[str, Any]) -> Problem | None:
    state = container.get("state", {})
    waiting = state.get("waiting")
    if waiting is not None:
        reason = waiting.get("reason", "")
        if reason in _PULL:
            image = container.get("image", "")
            text = (
                f"{where}: the image {image} cannot be pulled; check its name, the registry and spec.imagePullSecrets"
            )
            return Problem("ImagePullBackOff", _with(text, waiting.get("message")), fatal=True)
        if reason in _CANNOT_START:
            return Problem(reason, _with(f"{where} cannot start", waiting.get("message")), fatal=True)
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if ended is not None and not container.get("ready", False):
        return _ended(where, ended, finished=state.get("terminated") is not None)
    return None


def _probe_problem(where: str, container: Mapping[str, Any], status: Mapping[str, Any]) -> Problem | None:
    """A container that was ready and no longer is; one that has not been ready yet is loading."""
    running = container.get("state", {}).get("running")
    if running is None or container.get("ready", False):
        return None
    ready = find_condition(status, "Ready")
    if ready is None or ready.get("lastTransitionTime", "") <= running.get("startedAt", ""):
        return None
    return Problem("ReadinessProbeFailing", f"{where} runs, but its readiness probe fails")


def _ended(where: str, ended: Mapping[str, Any], *, finished: bool) -> Problem | None:
    code = ended.get("exitCode", 0)
    if ended.get("reason") == "OOMKilled":
        text = f"{where} was killed because it needed more memory than its limit; raise spec.resources.limits.memory"
        return Problem("OOMKilled", text, fatal=True)
    if code == 0:
        # An init container that is done, or a container that was asked to stop.
        return (
            None if finished and "init container" in where else Problem("ContainerExited", f"{where} ended by itself")
        )
    return Problem(
        "CrashLoopBackOff", _with(f"{where} ended with exit code {code}", last_line(ended.get("message"))), fatal=True
    )


def last_line(message: str | None) -> str:
    """The last line that says something; the runtime's own prefix is taken off."""
    lines = [line.strip() for line in (message or "").splitlines() if line.strip()]
    return lines[-1].removeprefix(_RUNTIME_PREFIX) if lines else ""


def _with(text: str, detail: str | None) -> str:
    return f"{text}: {' '.join(detail.split())}" if detail else text
