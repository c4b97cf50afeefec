"""The condition ModelCached: whether the files of a model that is downloaded are where its pods read them. Pure.

What brings them is asked: the init container of each pod, or the ModelCache. How far a download is stands in its log only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from quire_operator.api import DOWNLOADED
from quire_operator.observation import PodView, find_condition
from quire_operator.resources.fetching import NAME
from quire_operator.status.facts import Facts
from quire_operator.status.finding import Finding
from quire_operator.status.problems import init_problem


def model_cached(facts: Facts) -> Finding | None:
    """None where nothing is downloaded: the files are in an image, or on a claim of somebody else's."""
    model = facts.owner.spec.model
    if model.scheme == "cache":
        return _of_model_cache(model.rest, facts.model_cache)
    return _of_pods(facts) if model.scheme in DOWNLOADED else None


def _of_model_cache(name: str, body: Mapping[str, Any] | None) -> Finding:
    if body is None:
        return Finding("False", "NoModelCache", f"there is no ModelCache {name} in this namespace: make it")
    told = find_condition(body.get("status") or {}, "Ready")
    if told is None:
        return Finding("Unknown", "NotYetReported", f"the ModelCache {name} has not been looked at yet")
    reason, message = str(told.get("reason", "Unknown")), f"ModelCache {name}: {told.get('message', '')}"
    return Finding("True" if told.get("status") == "True" else "False", reason, message)


def _of_pods(facts: Facts) -> Finding:
    goal = facts.decision.goal
    pods = [pod for pod in facts.every if pod.revision == goal and not pod.terminating]
    if not pods:
        return Finding("Unknown", "NoPods", f"revision {goal} has no pod that could have the files")
    problem = next((found for pod in pods if (found := init_problem(pod, NAME)) is not None), None)
    if problem is not None:
        return Finding("False", "FetchFailed", problem.message)
    states = {pod.name: _state(pod) for pod in pods}
    have = sum(state == "Has" for state in states.values())
    if have == len(pods):
        return Finding("True", "Fetched", f"every pod of revision {goal} has the files")
    text = f"{have} of {len(pods)} pods of revision {goal} have the files"
    fetching = next((name for name, state in states.items() if state == "Fetches"), None)
    if fetching is None:
        return Finding("False", "Waiting", f"{text}; the others have not begun to fetch them")
    return Finding("False", "Fetching", f"{text}; `kubectl logs {fetching} -c {NAME}` says how far it is with them")


def _state(pod: PodView) -> Literal["Has", "Fetches", "Waits"]:
    spec, status = pod.body.get("spec") or {}, pod.body.get("status") or {}
    told = {each["name"]: each.get("state") or {} for each in status.get("initContainerStatuses") or ()}
    if NAME not in told and all(each["name"] != NAME for each in spec.get("initContainers") or ()):
        return "Has"  # of a revision whose files are there without it
    state = told.get(NAME, {})
    if pod.ready or (state.get("terminated") or {}).get("exitCode") == 0:
        return "Has"
    return "Fetches" if "running" in state else "Waits"
