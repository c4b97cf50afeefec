"""Why a pod is not ready, lifted out of it: one reason, one sentence. Pure.

A reason stays the same while its cause does: a container that crashes is CrashLoopBackOff whether it waits, has
just ended or runs once more, until it is ready.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from quire_operator.api import Condition
from quire_operator.observation import PodView, find_condition

_PULL = frozenset({"ImagePullBackOff", "ErrImagePull", "ImageInspectError", "RegistryUnavailable"})
_CANNOT_START = frozenset(
    {"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
_RUNTIME_PREFIX = "quire: error: "
_KILLED = 137
"""Exit code of a container that got SIGKILL: memory was short, or a probe failed and it did not end by itself."""
OUT_OF_MEMORY = "OOMKilled"
KILLED = "Killed"
"""It is not known yet why."""
ENGINE_KILLED = "the engine process was killed by SIGKILL"
"""The server's last line when the kernel took its engine, and left the server."""
_SHORT = "OOM-killed"
"""What runc says of a container whose memory does not do to start it."""


@dataclass(frozen=True)
class Problem:
    """`reason` for programs, `message` for people; `fatal` when waiting alone will not help. killed: why, nobody said.

    revision: of the pod. where: the pod and its container.
    """

    reason: str
    message: str
    fatal: bool = False
    killed: bool = False
    revision: str = ""
    where: str = ""


def problem_of(pods: tuple[PodView, ...], revision: str, before: Condition | None = None) -> Problem | None:
    """The most telling problem: of the wanted revision first, fatal ones first, then by pod name. before: the condition Ready as reported last."""
    found = [
        (pod.revision != revision, not problem.fatal, pod.name, replace(problem, revision=pod.revision))
        for pod in pods
        if not pod.terminating and not pod.ready
        for problem in (_continued(each, before) for each in _problems(pod))
    ]
    return min(found, key=lambda item: item[:3])[3] if found else None


def init_problem(pod: PodView, name: str) -> Problem | None:
    """Of one init container."""
    if pod.terminating or pod.ready:
        return None
    return next((found for found in _problems(pod) if found.where.endswith(f"init container {name}")), None)


def _continued(problem: Problem, before: Condition | None) -> Problem:
    """Of one that follows another in the same container: runtimes tell of some kills, and not of others, that memory was short."""
    if before is None or not problem.killed or before.reason != OUT_OF_MEMORY:
        return problem
    same = before.message.startswith(f"{problem.where} ")
    return replace(_out_of_memory(problem.where), where=problem.where) if same else problem


def _problems(pod: PodView) -> Iterator[Problem]:
    status = pod.body.get("status", {})
    restarts = pod.body.get("spec", {}).get("restartPolicy") != "Never"
    scheduled = find_condition(status, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        text = f"pod {pod.name} cannot be scheduled; change spec.resources or spec.template, or add a node that fits"
        yield Problem("Unschedulable", _with(text, scheduled.get("message", "no reason given")))
        return
    for kind, where in (("initContainerStatuses", "init container"), ("containerStatuses", "container")):
        for container in status.get(kind) or ():
            full_name = f"pod {pod.name}, {where} {container['name']}"
            problem = _container_problem(full_name, container, restarts=restarts)
            problem = problem or _probe_problem(full_name, container, status)
            if problem is not None:
                yield replace(problem, where=full_name)


def _container_problem(where: str, container: Mapping[str, Any], *, restarts: bool) -> Problem | None:
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
            if _SHORT in (waiting.get("message") or ""):
                return _out_of_memory(where)
            return Problem(reason, _with(f"{where} cannot start", waiting.get("message")), fatal=True)
    finished = state.get("terminated")
    ended = finished or container.get("lastState", {}).get("terminated")
    if ended is None or container.get("ready", False):
        return None
    problem = _ended(where, ended, finished=finished is not None)
    if problem is not None and problem.killed and finished is not None and restarts:
        # Some runtimes learn after the end of a container why it was killed; what they say of it once it is started again is their last word.
        return Problem(KILLED, f"{where} was killed, and is started again", killed=True)
    return problem


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
    reason, told = ended.get("reason"), ended.get("message") or ""
    if reason == OUT_OF_MEMORY or (reason == "StartError" and _SHORT in told):
        return _out_of_memory(where)
    if code == 0:
        # An init container that is done, or a container that was asked to stop.
        return (
            None if finished and "init container" in where else Problem("ContainerExited", f"{where} ended by itself")
        )
    what = f"{where} ended with exit code {code}"
    what += " (killed: its memory was short, or its liveness probe failed)" if code == _KILLED else ""
    line = last_line(told)
    killed = code == _KILLED or ENGINE_KILLED in line
    return Problem("CrashLoopBackOff", _with(what, line), fatal=True, killed=killed)


def _out_of_memory(where: str) -> Problem:
    text = f"{where} was killed because it needed more memory than its limit; raise spec.resources.limits.memory"
    return Problem(OUT_OF_MEMORY, text, fatal=True)


def last_line(message: str | None) -> str:
    """The last line that says something; the runtime's own prefix is taken off."""
    lines = [line.strip() for line in (message or "").splitlines() if line.strip()]
    return lines[-1].removeprefix(_RUNTIME_PREFIX) if lines else ""


def _with(text: str, detail: str | None) -> str:
    return f"{text}: {' '.join(detail.split())}" if detail else text
