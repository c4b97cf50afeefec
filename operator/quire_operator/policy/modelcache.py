"""What should happen to the claim and the Job of one ModelCache now. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from quire_operator import labels
from quire_operator.api import CachePhase, ModelCacheSpec, ModelCacheStatus, seconds
from quire_operator.observation import find_condition

FILLING_S = 15.0
"""While the Job runs its pod is looked at this often: pods of Jobs are not watched."""

LEAVING_S = 5.0
"""While the claim is being deleted it is looked at this often."""

RETRY_S = 600.0
"""A Job that failed is thrown away after this long, so that it is tried anew: the network may be back."""

Body = Mapping[str, Any]


@dataclass(frozen=True)
class JobView:
    """One Job. `mark` is the hash of what was applied, `failed_at` None unless it gave up."""

    name: str
    created: str
    mark: str
    succeeded: bool
    failed_at: str | None
    failure: str


@dataclass(frozen=True)
class CachePlan:
    """`unused_since` is None while somebody uses it. `again_s`: when to look without being asked."""

    fill: bool
    """Claim and Job should be there."""
    drop_jobs: tuple[str, ...]
    drop_claim: bool
    phase: CachePhase
    reason: str
    message: str
    unused_since: str | None
    again_s: float | None


def job_view(body: Body) -> JobView:
    """From what the API server says."""
    metadata, status = body["metadata"], body.get("status", {})
    failed = find_condition(status, "Failed")
    gave_up = failed is not None and failed.get("status") == "True"
    complete = find_condition(status, "Complete")
    return JobView(
        name=metadata["name"],
        created=metadata.get("creationTimestamp", ""),
        mark=metadata.get("annotations", {}).get(labels.APPLIED_HASH, ""),
        succeeded=complete is not None and complete.get("status") == "True",
        failed_at=str(failed.get("lastTransitionTime", "")) if failed is not None and gave_up else None,
        failure=str(failed.get("message", "")) if failed is not None and gave_up else "",
    )


def plan_cache(
    spec: ModelCacheSpec,
    before: ModelCacheStatus,
    *,
    claim: Body | None,
    jobs: Sequence[JobView],
    mark: str,
    users: Sequence[str],
    pods: int,
    problem: str | None,
    now: str,
) -> CachePlan:
    """`mark` is the hash of the Job as it would be made now, `pods` how many it has, `problem` why the last of them does not run, `now` a time
    as Kubernetes writes it."""
    # A time of a clock that was ahead is not waited for.
    since = None if users else min(before.unused_since or now, now)
    leaving = claim is not None and "deletionTimestamp" in claim["metadata"]
    left = _left_s(spec, since, now)
    if left is not None and left <= 0:
        gone = claim is None and not jobs
        return CachePlan(
            False, tuple(job.name for job in jobs), claim is not None and not leaving, "Evicted", "Evicted",
            f"no LLMDeployment has used it for {spec.evict_after}: "
            + ("the claim is deleted, and made again when one does" if gone else "the claim is being deleted"),
            since, None if gone else LEAVING_S,
        )  # fmt: skip
    if leaving:
        return CachePlan(
            False, tuple(job.name for job in jobs), False, "Pending", "ClaimTerminating",
            "the claim is being deleted, and made again when the last pod has let go of it",
            since, LEAVING_S,
        )  # fmt: skip
    current = [job for job in jobs if _belongs(job, claim, mark)]
    stale = tuple(job.name for job in jobs if job not in current)
    job = current[0] if current else None
    if job is not None and job.succeeded:
        return CachePlan(True, stale, False, "Ready", "Filled", "the claim holds the whole model", since, left)
    if job is not None and job.failed_at is not None:
        wait = RETRY_S - abs(_between_s(job.failed_at, now))  # absolute: the clock of another machine may be ahead
        why = problem or job.failure or "the Job failed"
        if wait > 0:
            return CachePlan(
                False, stale, False, "Failed", "DownloadFailed", f"{why}; tried again in some minutes", since, wait
            )
        return CachePlan(
            False, (*stale, job.name), False, "Failed", "DownloadFailed", f"{why}; trying again", since, 1.0
        )
    if problem is not None:
        return CachePlan(True, stale, False, "Filling", "JobProblem", problem, since, FILLING_S)
    if job is not None and not pods and _between_s(job.created, now) > FILLING_S:
        return CachePlan(
            True, stale, False, "Filling", "NoPod",
            f"the Job {job.name} gets no pod (a quota, a rule about pods?): `kubectl describe job {job.name}` says why",
            since, FILLING_S,
        )  # fmt: skip
    if job is not None:
        return CachePlan(
            True,
            stale,
            False,
            "Filling",
            "Downloading",
            "the Job downloads; see its log for how far it is",
            since,
            FILLING_S,
        )
    return CachePlan(
        not stale,
        stale,
        False,
        "Pending",
        "Starting",
        "claim and Job are being made",
        since,
        1.0 if stale else FILLING_S,
    )


def _belongs(job: JobView, claim: Body | None, mark: str) -> bool:
    """It fills the claim that is there, and is as it would be made now; one that succeeded need not be made anew."""
    if claim is None or job.created < claim["metadata"].get("creationTimestamp", ""):
        return False
    return job.succeeded or job.mark == mark


def _left_s(spec: ModelCacheSpec, since: str | None, now: str) -> float | None:
    """Seconds until it is evicted; None where it never is."""
    if since is None or spec.evict_after is None:
        return None
    return seconds(spec.evict_after) - _between_s(since, now)


def _between_s(earlier: str, later: str) -> float:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
