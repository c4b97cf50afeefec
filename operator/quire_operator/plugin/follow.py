"""Logs of all pods of one LLMDeployment: which containers matter (pure), and their lines as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx2

from quire_operator import labels
from quire_operator.errors import PluginError
from quire_operator.observation import Body
from quire_operator.plugin.reach import Reach

LOOK_S = 2.0
"""How soon the pods of a rollout, and the engine after its download, are seen with --follow."""


@dataclass(frozen=True)
class Stream:
    """One container's life: a restart is another one."""

    pod: str
    container: str
    restarts: int


Write = Callable[[Stream, str], None]


def streams_of(pods: Sequence[Body], *, previous: bool = False) -> tuple[Stream, ...]:
    """At most one a pod: the init container that runs or failed, else the engine. previous: whose last life has ended."""
    found = (_stream_of(pod, previous) for pod in sorted(pods, key=lambda pod: str(pod["metadata"]["name"])))
    return tuple(stream for stream in found if stream is not None)


def _stream_of(pod: Body, previous: bool) -> Stream | None:
    beside = {
        each["name"]
        for each in pod.get("spec", {}).get("initContainers") or ()
        if each.get("restartPolicy") == "Always"
    }
    status = pod.get("status", {})
    first = [each for each in status.get("initContainerStatuses") or () if each["name"] not in beside]
    engine = [each for each in status.get("containerStatuses") or () if each["name"] == labels.CONTAINER]
    for each in (*engine, *reversed(first)) if previous else (*first, *engine):
        state = each.get("state", {})
        if previous:
            wanted = "terminated" in each.get("lastState", {})
        elif each["name"] == labels.CONTAINER:
            wanted = "running" in state or "terminated" in state or "terminated" in each.get("lastState", {})
        else:
            wanted = state.get("terminated", {}).get("exitCode") != 0 and _began(each)
        if wanted:
            return Stream(pod["metadata"]["name"], each["name"], each.get("restartCount", 0))
    return None


def _began(container: Body) -> bool:
    return "waiting" not in container.get("state", {"waiting": {}}) or "terminated" in container.get("lastState", {})


def show(reach: Reach, streams: Sequence[Stream], write: Write, *, previous: bool, tail: int | None) -> None:
    """One after the other, what there is now."""
    for stream in streams:
        for line in reach.log(
            stream.pod, stream.container, follow=False, previous=previous, tail=tail, started=lambda: None
        ):
            write(stream, line)


def follow(reach: Reach, look: Callable[[], Sequence[Stream]], write: Write, *, tail: int | None) -> None:
    """All at once, and those that begin later, until interrupted. Raises BrokenPipeError when nobody reads any more."""
    begun: set[Stream] = set()
    lock, wake, unread, ended = threading.Lock(), threading.Event(), threading.Event(), threading.Event()

    def guarded(stream: Stream, line: str) -> None:
        with lock:
            if not ended.is_set():  # what breaks off because the connections are closed is no news
                write(stream, line)

    def read(stream: Stream, last: int | None) -> None:
        agreed = False

        def started() -> None:
            nonlocal agreed
            agreed = True

        try:
            try:
                for line in reach.log(
                    stream.pod, stream.container, follow=True, previous=False, tail=last, started=started
                ):
                    guarded(stream, line)
            except (httpx2.HTTPError, PluginError) as error:
                if not agreed:
                    begun.discard(stream)  # too early or too late: the next look says which
                    return
                guarded(stream, f"(the log broke off: {error})")
        except (BrokenPipeError, SystemExit):  # rich makes the one of the other
            unread.set()
        wake.set()

    last = tail
    try:
        while True:
            for stream in look():
                if stream not in begun:
                    begun.add(stream)
                    threading.Thread(target=read, args=(stream, last), daemon=True).start()
            last = None
            wake.wait(LOOK_S)
            if unread.is_set():
                raise BrokenPipeError
            wake.clear()
    finally:
        with lock:
            ended.set()
