"""Reads one ModelCache with its claim, Job and users, and carries out what `policy.modelcache` decides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from quire_operator import labels
from quire_operator.api import ModelCacheSpec, ModelCacheStatus
from quire_operator.cluster import Cluster, kinds
from quire_operator.cluster.drift import digest
from quire_operator.controllers.report import now_text, ready_condition, ready_event
from quire_operator.errors import ApplyError
from quire_operator.observation import Body, owned_by, pod_view
from quire_operator.policy.modelcache import CachePlan, job_view, plan_cache
from quire_operator.resources import PodDefaults
from quire_operator.resources.modelcache import CacheOwner, build_claim, build_job
from quire_operator.spec import Key, parse_status
from quire_operator.status import problem_of
from quire_operator.workqueue import Outcome

log = logging.getLogger(__name__)

PREFIX = "cache://"
_QUIET = frozenset({"Starting", "Downloading"})


class ModelCaches:
    """Call it with a key; it is the work of the queue. `changed(key)` is called for each LLMDeployment that uses it when it has something new to say."""

    def __init__(
        self, cluster: Cluster, defaults: PodDefaults, *, changed: Callable[[Key], None] = lambda key: None
    ) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._changed = changed

    async def __call__(self, key: Key) -> Outcome:
        body = await self._cluster.get(kinds.ModelCache, key.name, key.namespace)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._cluster.forget(key)
            return Outcome()
        try:
            owner = CacheOwner(
                key.name, key.namespace, body["metadata"]["uid"], ModelCacheSpec.model_validate(body["spec"])
            )
        except ValidationError as error:
            log.warning("ModelCache %s cannot be understood: %s", key, error)
            await self._report_invalid(body, error)
            return Outcome()
        return await self._converge(owner, body)

    async def _converge(self, owner: CacheOwner, body: Body) -> Outcome:
        key = Key(owner.namespace, owner.name)
        mine = {labels.MODEL_CACHE: owner.name}
        claim, jobs, pods, users = await asyncio.gather(
            self._cluster.get(kinds.PersistentVolumeClaim, labels.cache_claim(owner.name), owner.namespace),
            self._cluster.listed(kinds.Job, owner.namespace, mine),
            self._cluster.listed(kinds.Pod, owner.namespace, mine),
            self._users(owner),
        )
        before, now = _status(body), now_text()
        job = build_job(owner, self._defaults)
        problem = _problem(pods)
        plan = plan_cache(
            owner.spec,
            before,
            claim=claim if claim is None or owned_by(claim, owner.uid) else None,
            jobs=[job_view(each) for each in jobs if owned_by(each, owner.uid)],
            mark=digest(job),
            users=users,
            pods=len(pods),
            problem=problem,
            now=now,
        )
        refused: str | None = None
        try:
            await self._carry_out(owner, key, plan, claim, {each["metadata"]["name"] for each in jobs}, job)
        except ApplyError as error:
            refused = str(error)
        await self._report(body, before, plan, users, refused, now)
        return Outcome(again_s=plan.again_s, failed=refused is not None)

    async def _report_invalid(self, body: Body, error: ValidationError) -> None:
        """What there is is left alone."""
        before, first = _status(body), error.errors()[0]
        where = ".".join(("spec", *(str(part) for part in first["loc"])))
        text = f"{where} is not acceptable: {first['msg']}; the object was stored under another schema: apply it again"
        plan = CachePlan(False, (), False, "Failed", "InvalidSpec", text, before.unused_since, None)
        await self._report(body, before, plan, before.used_by, None, now_text())

    async def _carry_out(
        self, owner: CacheOwner, key: Key, plan: CachePlan, claim: Body | None, there: set[str], job: dict[str, Any]
    ) -> None:
        for name in plan.drop_jobs:
            await self._cluster.delete(kinds.Job, key, name)
        if plan.drop_claim:
            await self._cluster.delete(kinds.PersistentVolumeClaim, key, labels.cache_claim(owner.name))
        if plan.fill:
            await self._cluster.apply(build_claim(owner), claim)
            if job["metadata"]["name"] not in there:  # a Job's template cannot change
                await self._cluster.apply(job, None)

    async def _users(self, owner: CacheOwner) -> tuple[str, ...]:
        found = await self._cluster.listed(kinds.LLMDeployment, owner.namespace, {})
        source = f"{PREFIX}{owner.name}"
        return tuple(sorted(each["metadata"]["name"] for each in found if source in _sources(each)))

    async def _report(
        self,
        body: Body,
        before: ModelCacheStatus,
        plan: CachePlan,
        users: tuple[str, ...],
        refused: str | None,
        now: str,
    ) -> None:
        reason, message = ("ApplyFailed", refused) if refused is not None else (plan.reason, plan.message)
        ready = ready_condition(
            before.conditions,
            status="True" if plan.phase == "Ready" and refused is None else "False",
            reason=reason,
            message=message,
            generation=body["metadata"]["generation"],
            now=now,
        )
        after = ModelCacheStatus(
            observed_generation=body["metadata"]["generation"],
            phase=plan.phase,
            conditions=(ready,),
            claim=labels.cache_claim(body["metadata"]["name"]),
            used_by=users,
            unused_since=plan.unused_since,
        )
        shown = after.model_dump(by_alias=True, exclude_none=True, mode="json")
        if await self._cluster.write_status(body, shown, kind=labels.MODEL_CACHE_KIND):
            for event in ready_event(before.conditions, ready, quiet=_QUIET):
                await self._cluster.post_event(body, event, kind=labels.MODEL_CACHE_KIND)
            for user in users:
                self._changed(Key(body["metadata"]["namespace"], user))


def _status(body: Body) -> ModelCacheStatus:
    try:
        return ModelCacheStatus.model_validate(body.get("status") or {})
    except ValidationError:
        return ModelCacheStatus()


def _problem(pods: Sequence[Body]) -> str | None:
    """Why the newest pod of the Job does not do it, or did not: those before it were tried again."""
    newest = max(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")), default=None)
    problem = problem_of((pod_view(newest),), "") if newest is not None and not _succeeded(newest) else None
    return f"{problem.reason}: {problem.message}" if problem is not None else None


def _succeeded(pod: Body) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Succeeded")


def _sources(body: Body) -> set[str]:
    """Of the revision that is wanted, and of those that serve or are returned to."""
    wanted = ((body.get("spec") or {}).get("model") or {}).get("source", "")
    return {wanted, *(each.model for each in parse_status(body).revisions if each.model is not None)}
