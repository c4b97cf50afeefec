"""What tests of rollouts ask a cluster: revisions as the status tells them, pods by revision, commands, and who answered."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx

from cluster import wait
from cluster.handle import Cluster, Event
from stack import llmd

FINISHED = re.compile(r"^quire_requests_finished_total\{[^}]*\} ([0-9.e+]+)$", re.MULTILINE)
EXECUTING = re.compile(r"^quire_num_requests_executing(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)


def command(cluster: Cluster, namespace: str, name: str, value: str) -> None:
    """`quire.dev/rollout=VALUE`, as a user sets it."""
    cluster.kubectl("annotate", f"llmd/{name}", "-n", namespace, f"quire.dev/rollout={value}", "--overwrite")


def status(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """The status as it is now."""
    found: dict[str, Any] = llmd.get(cluster, namespace, name).get("status", {})
    return found


def current(cluster: Cluster, namespace: str, name: str) -> str:
    """The stable revision."""
    return str(status(cluster, namespace, name)["currentRevision"])


def shares(found: dict[str, Any]) -> dict[str, int]:
    """Weights of a status by revision."""
    return {revision["name"]: revision.get("weight", 0) for revision in found.get("revisions", [])}


def until(
    cluster: Cluster,
    namespace: str,
    name: str,
    what: str,
    holds: Callable[[dict[str, Any]], bool],
    *,
    deadline_s: float,
) -> dict[str, Any]:
    """Wait for a status that satisfies `holds`; returns it."""

    def seen(event: Event) -> bool:
        return event.type != "DELETED" and holds(event.object.get("status", {}))

    found = cluster.watch(what, f"llmd/{name}", "-n", namespace, until=seen, deadline_s=deadline_s)
    return dict(found["status"])


def reason(found: dict[str, Any], kind: str) -> str:
    """The reason of a condition in a status; empty where there is none."""
    return next((item["reason"] for item in found.get("conditions", []) if item["type"] == kind), "")


def pods(cluster: Cluster, namespace: str, name: str) -> list[dict[str, Any]]:
    """Every pod of the LLMDeployment."""
    found = cluster.kubectl_json("get", "pods", "-n", namespace, "-l", f"quire.dev/deployment={name}")
    return list(found["items"])


def identities(cluster: Cluster, namespace: str, name: str) -> set[tuple[str, int]]:
    """Uid and restarts of each pod: equal sets mean that nothing was touched."""
    return {
        (pod["metadata"]["uid"], sum(item["restartCount"] for item in pod["status"].get("containerStatuses", [])))
        for pod in pods(cluster, namespace, name)
    }


def events(cluster: Cluster, namespace: str, name: str, kind: str = "LLMDeployment") -> list[tuple[str, str]]:
    """Type and reason of each Event about the object; the operator writes one each time it tells something."""
    which = f"involvedObject.kind={kind},involvedObject.name={name}"
    found = cluster.kubectl_json("get", "events", "-n", namespace, f"--field-selector={which}")["items"]
    return [(item["type"], item["reason"]) for item in found]


def messages(cluster: Cluster, namespace: str, name: str) -> list[tuple[str, str]]:
    """Reason and message of each Event about the LLMDeployment."""
    which = f"involvedObject.kind=LLMDeployment,involvedObject.name={name}"
    found = cluster.kubectl_json("get", "events", "-n", namespace, f"--field-selector={which}")["items"]
    return [(item["reason"], item["message"]) for item in found]


def told_once(
    cluster: Cluster, namespace: str, name: str, kind: str, reason: str, *, about: str = "LLMDeployment"
) -> None:
    """An Event of that type and reason is there, and only one. It is written after the status that tells the same."""

    def missing() -> str | None:
        return None if (kind, reason) in events(cluster, namespace, name, about) else "none"

    wait.until(f"the Event {reason} about {about} {name}", missing, deadline_s=60, interval_s=0.2)
    assert events(cluster, namespace, name, about).count((kind, reason)) == 1


def answered(cluster: Cluster, namespace: str, name: str, by: str = "quire.dev/revision") -> Counter[str]:
    """Requests finished so far as the pods themselves count them, by a label of theirs."""
    out: Counter[str] = Counter()
    for pod in pods(cluster, namespace, name):
        if "podIP" in pod["status"]:
            out[pod["metadata"]["labels"][by]] += _told(pod, FINISHED)
    return out


def all_answer(cluster: Cluster, namespace: str, name: str) -> None:
    """Wait until each pod has a request that it answers, as it says itself: whichever goes next, somebody would notice."""
    found = [pod for pod in pods(cluster, namespace, name) if "deletionTimestamp" not in pod["metadata"]]

    def idle() -> str | None:
        try:
            return " ".join(pod["metadata"]["name"] for pod in found if not _told(pod, EXECUTING)) or None
        except httpx.HTTPError as error:
            return repr(error)

    wait.until("every pod answers a request", idle, deadline_s=60, interval_s=0.2)


def _told(pod: dict[str, Any], sample: re.Pattern[str]) -> int:
    """The sum of a pod's samples."""
    page = httpx.get(f"http://{pod['status']['podIP']}:8000/metrics", timeout=30, trust_env=False).text
    return round(sum(float(value) for value in sample.findall(page)))
