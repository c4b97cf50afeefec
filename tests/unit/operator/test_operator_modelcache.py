"""ModelCache: the decision over time, and the whole of it on a real API server with the Job controller played by hand."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import DEFAULTS
from quire_operator.api import ModelCacheSpec, ModelCacheStatus
from quire_operator.cluster import Cluster
from quire_operator.controllers import ModelCaches
from quire_operator.policy.modelcache import RETRY_S, CachePlan, JobView, plan_cache
from quire_operator.resources.modelcache import CacheOwner, build_claim, build_job
from quire_operator.spec import Key
from real_api import RealApi
from scripted_api import scripted_api

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

SPEC = {"model": {"source": "hf://org/name"}, "size": "2Gi"}
CLAIM = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
NOW = "2026-01-02T00:00:00Z"
GOOD = JobView("fill", "2026-01-01T00:00:01Z", "m", succeeded=True, failed_at=None, failure="")


def job(**more: Any) -> JobView:
    return JobView(**{**GOOD.__dict__, "succeeded": False, **more})


def plan(
    *jobs: JobView,
    spec: dict[str, Any] | None = None,
    claim: dict[str, Any] | None = CLAIM,
    users: tuple[str, ...] = (),
    before: dict[str, Any] | None = None,
    pods: int = 1,
    problem: str | None = None,
    now: str = NOW,
) -> CachePlan:
    return plan_cache(
        ModelCacheSpec.model_validate({**SPEC, **(spec or {})}),
        ModelCacheStatus.model_validate(before or {}),
        claim=claim,
        jobs=jobs,
        mark="m",
        users=users,
        pods=pods,
        problem=problem,
        now=now,
    )


def test_it_is_filled_before_anybody_uses_it() -> None:
    first = plan(claim=None)
    assert first.fill and first.phase == "Pending" and first.unused_since == NOW
    assert plan(job()).phase == "Filling"
    assert plan(GOOD).phase == "Ready"


def test_a_job_that_succeeded_need_not_be_as_it_would_be_made_now() -> None:
    upgraded = JobView(**{**GOOD.__dict__, "mark": "older"})
    assert plan(upgraded).phase == "Ready" and plan(upgraded).drop_jobs == ()
    running = job(mark="older")
    assert plan(running).drop_jobs == ("fill",) and not plan(running).fill, "first the old one goes"


def test_a_job_of_a_claim_that_is_gone_proves_nothing() -> None:
    assert plan(GOOD, claim=None).drop_jobs == ("fill",)
    younger = {"metadata": {"creationTimestamp": "2026-01-01T12:00:00Z"}}
    assert plan(GOOD, claim=younger).drop_jobs == ("fill",)


def test_a_claim_that_is_being_deleted_is_waited_for() -> None:
    leaving = {"metadata": {**CLAIM["metadata"], "deletionTimestamp": NOW}}
    told = plan(GOOD, claim=leaving, users=("a",))
    assert (told.phase, told.reason) == ("Pending", "ClaimTerminating")
    assert told.drop_jobs == ("fill",) and not told.fill and not told.drop_claim and told.again_s
    evicted = plan(claim=leaving, spec={"evictAfter": "1h"}, before={"unusedSince": "2026-01-01T12:00:00Z"})
    assert evicted.phase == "Evicted" and not evicted.drop_claim and evicted.again_s, "it is told to go once"


def test_a_failure_is_told_and_tried_again_later() -> None:
    failed = job(failed_at="2026-01-01T23:55:00Z", failure="backoff limit")
    told = plan(failed, problem="CrashLoopBackOff: no room left")
    assert told.phase == "Failed" and "no room left" in told.message and told.drop_jobs == ()
    assert told.again_s == pytest.approx(RETRY_S - 300)
    late = plan(job(failed_at="2026-01-01T23:40:00Z"))
    assert late.drop_jobs == ("fill",) and not late.fill
    assert plan(users=("a",)).fill, "and then a new one is made"


def test_clocks_that_were_ahead_hold_nothing_up() -> None:
    failed = plan(job(failed_at="2026-01-03T00:00:00Z"))
    assert failed.drop_jobs == ("fill",), "a day ahead: tried again now"
    unused = plan(GOOD, spec={"evictAfter": "1h"}, before={"unusedSince": "2026-01-03T00:00:00Z"})
    assert unused.unused_since == NOW and unused.again_s == 3600.0


def test_what_keeps_the_pod_from_running_is_told() -> None:
    assert plan(job(), problem="ImagePullBackOff: x").message == "ImagePullBackOff: x"


def test_a_job_that_gets_no_pod_is_told() -> None:
    assert plan(job(), pods=0, now="2026-01-01T00:00:05Z").reason == "Downloading", (
        "the Job controller gets some seconds"
    )
    told = plan(job(), pods=0)
    assert told.reason == "NoPod" and "kubectl describe job fill" in told.message and told.again_s


def test_it_goes_when_nobody_has_used_it_for_long_enough() -> None:
    spec = {"evictAfter": "24h"}
    used = plan(GOOD, spec=spec, users=("a",), before={"unusedSince": "2020-01-01T00:00:00Z"})
    assert used.phase == "Ready" and used.unused_since is None and used.again_s is None
    since = {"unusedSince": "2026-01-01T12:00:00Z"}
    waiting = plan(GOOD, spec=spec, before=since)
    assert waiting.phase == "Ready" and waiting.again_s == 12 * 3600
    evicted = plan(GOOD, spec=spec, before=since, now="2026-01-02T12:00:00Z")
    assert evicted.drop_claim and evicted.drop_jobs == ("fill",) and not evicted.fill
    gone = plan(spec=spec, before=since, claim=None, now="2026-01-05T00:00:00Z")
    assert gone.phase == "Evicted" and gone.again_s is None and not gone.drop_claim
    back = plan(spec=spec, before=since, claim=None, users=("a",), now="2026-01-05T00:00:00Z")
    assert back.fill and back.unused_since is None
    assert plan(GOOD, before={"unusedSince": "2020-01-01T00:00:00Z"}).phase == "Ready", "never, unless asked for"


def test_the_job_fetches_into_the_claim_that_deployments_mount() -> None:
    of = CacheOwner("llama", "demo", "u", ModelCacheSpec.model_validate(SPEC))
    made = build_job(of, DEFAULTS)["spec"]["template"]["spec"]
    [container] = made["containers"]
    assert container["args"][:3] == ["fetch", "hf://org/name", "--to=/mnt/model/content"]
    claim = {"claimName": "llama-modelcache"}
    assert {"name": "model", "persistentVolumeClaim": claim} in made["volumes"]
    assert build_claim(of)["metadata"]["name"] == claim["claimName"]
    assert build_claim(of)["spec"]["accessModes"] == ["ReadWriteMany"]


def test_the_job_brings_code_and_takes_room_as_it_is_told() -> None:
    def container(**more: Any) -> dict[str, Any]:
        of = CacheOwner("llama", "demo", "u", ModelCacheSpec.model_validate({**SPEC, **more}))
        [made] = build_job(of, DEFAULTS)["spec"]["template"]["spec"]["containers"]
        return dict(made)

    assert "--code" not in container()["args"] and "resources" not in container()
    assert "--code" in container(code=True)["args"]
    room = {"requests": {"cpu": 1, "memory": "512Mi"}, "limits": {"memory": "1Gi"}}
    assert container(resources=room)["resources"] == {
        "requests": {"cpu": "1", "memory": "512Mi"},
        "limits": {"memory": "1Gi"},
    }


def test_the_job_takes_on_a_role_as_the_account_that_is_named() -> None:
    bucket = {"source": "s3://bucket/m", "s3": {"webIdentity": {"roleArn": "arn:aws:iam::1:role/m"}}}
    spec = ModelCacheSpec.model_validate({**SPEC, "model": bucket, "serviceAccountName": "models"})
    made = build_job(CacheOwner("llama", "demo", "u", spec), DEFAULTS)["spec"]["template"]["spec"]
    assert made["serviceAccountName"] == "models" and made["automountServiceAccountToken"] is False
    assert [each["name"] for each in made["volumes"]] == ["tmp", "model", "identity"]
    assert {each["name"] for each in made["containers"][0]["env"]} >= {"AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE"}
    plain = CacheOwner("llama", "demo", "u", ModelCacheSpec.model_validate(SPEC))
    assert "serviceAccountName" not in build_job(plain, DEFAULTS)["spec"]["template"]["spec"]


async def test_one_of_another_schema_says_so_and_is_left_alone() -> None:
    """The API server would not take it now; it was stored before."""
    path = "/apis/quire.dev/v1alpha1/namespaces/demo/modelcaches/llama"
    metadata = {"name": "llama", "namespace": "demo", "uid": "u", "generation": 3}
    async with scripted_api() as api:
        status = {"usedBy": ["a"], "unusedSince": "2026-01-01T00:00:00Z"}
        api.put(path, {"metadata": metadata, "spec": {**SPEC, "surprise": True}, "status": status})
        client = api.client()
        await ModelCaches(Cluster(client), DEFAULTS)(Key("demo", "llama"))
        await client.close()
        told = api.objects[path]["status"]
        assert [(each["status"], each["reason"]) for each in told["conditions"]] == [("False", "InvalidSpec")]
        assert "spec.surprise" in told["conditions"][0]["message"] and told["usedBy"] == ["a"]
        assert {where for _, where in api.writes} <= {f"{path}/status", "/apis/events.k8s.io/v1/namespaces/demo/events"}


class Bench:
    """One ModelCache `llama` in a namespace of its own."""

    def __init__(self, api: RealApi, cluster: Cluster, **spec: Any) -> None:
        self.api = api
        self.namespace = api.namespace()
        self.changed: list[Key] = []
        self.controller = ModelCaches(cluster, DEFAULTS, changed=self.changed.append)
        self.caches = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/modelcaches"
        self.deployments = f"/apis/quire.dev/v1alpha1/namespaces/{self.namespace}/llmdeployments"
        self.job = f"/apis/batch/v1/namespaces/{self.namespace}/jobs/llama-modelcache-fill"
        self.claim = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims/llama-modelcache"
        self.create(self.caches, "ModelCache", "llama", {**SPEC, **spec})

    def create(self, path: str, kind: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        assert self.api.create(path, body, dry_run=False).status_code == 201

    async def look(self) -> dict[str, Any]:
        await self.controller(Key(self.namespace, "llama"))
        found = self.api.get(f"{self.caches}/llama")
        assert found is not None
        status: dict[str, Any] = found["status"]
        return status

    def finish(self, kind: str) -> None:
        """As the Job controller does."""
        at = "2026-01-01T00:00:00Z"
        conditions = [{"type": kind, "status": "True", "lastTransitionTime": at, "reason": "r", "message": "m"}]
        status: dict[str, Any] = {"conditions": conditions}
        if kind == "Complete":
            before = {"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": at}
            status |= {"startTime": at, "completionTime": at, "succeeded": 1, "conditions": [before, *conditions]}
        else:
            before = {"type": "FailureTarget", "status": "True", "lastTransitionTime": at}
            status |= {"startTime": at, "failed": 1, "conditions": [before, *conditions]}
        self.api.patch(f"{self.job}/status", {"status": status})

    def pod(self, name: str, phase: str, ended: dict[str, Any] | None = None) -> None:
        """Of the Job, as the kubelet reports it."""
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        metadata = {"name": name, "labels": {"quire.dev/modelcache": "llama"}}
        spec = {"containers": [{"name": "fetch", "image": "i"}]}
        assert self.api.create(pods, {"metadata": metadata, "spec": spec}, dry_run=False).status_code == 201
        status: dict[str, Any] = {"phase": phase}
        if ended is not None:
            one = {"name": "fetch", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
            status["containerStatuses"] = [{**one, "state": {"terminated": ended}}]
        self.api.patch(f"{pods}/{name}/status", {"status": status})

    def writes(self) -> list[str]:
        """Versions of everything; they change with every write."""
        found = (self.api.get(path) for path in (f"{self.caches}/llama", self.job, self.claim))
        return [each["metadata"]["resourceVersion"] if each is not None else "" for each in found]


async def test_a_claim_is_filled_used_and_a_cluster_at_rest_gets_no_write(api: RealApi, real_cluster: Cluster) -> None:
    bench = Bench(api, real_cluster)
    assert (await bench.look())["phase"] == "Pending"
    assert (await bench.look())["phase"] == "Filling"
    claim, job_body = api.get(bench.claim), api.get(bench.job)
    assert claim is not None and job_body is not None
    assert claim["metadata"]["ownerReferences"][0]["kind"] == "ModelCache"
    bench.finish("Complete")
    status = await bench.look()
    assert status["phase"] == "Ready" and status["conditions"][0]["status"] == "True"
    assert "usedBy" not in status or status["usedBy"] == []
    bench.create(bench.deployments, "LLMDeployment", "a", {"model": {"source": "cache://llama"}})
    bench.create(bench.deployments, "LLMDeployment", "b", {"model": {"source": "hf://org/name"}})
    status = await bench.look()
    assert status["usedBy"] == ["a"] and "unusedSince" not in status
    assert bench.changed == [Key(bench.namespace, "a")], "it tells its ModelCached"
    before = bench.writes()
    await bench.look()
    assert bench.writes() == before and len(bench.changed) == 1
    stable = {"name": "x", "track": "stable", "model": "cache://llama", "replicas": 1, "ready": 1}
    api.patch(f"{bench.deployments}/a", {"spec": {"model": {"source": "hf://org/other"}}})
    api.patch(f"{bench.deployments}/a/status", {"status": {"revisions": [stable]}})
    assert (await bench.look())["usedBy"] == ["a"], "the revision that serves still has it"
    api.patch(f"{bench.deployments}/a/status", {"status": {"revisions": []}})
    assert "unusedSince" in await bench.look()


async def test_a_job_that_failed_is_made_anew(api: RealApi, real_cluster: Cluster) -> None:
    bench = Bench(api, real_cluster)
    await bench.look()
    await bench.look()
    first = api.get(bench.job)
    assert first is not None
    bench.pod("fill-1", "Failed", {"exitCode": 1, "message": "quire: error: the token is not accepted"})
    bench.finish("Failed")  # long ago, so that it is time to try again
    status = await bench.look()
    assert status["phase"] == "Failed" and status["conditions"][0]["reason"] == "DownloadFailed"
    assert "the token is not accepted" in status["conditions"][0]["message"]
    assert api.get(bench.job) is None
    await bench.look()
    second = api.get(bench.job)
    assert second is not None and second["metadata"]["uid"] != first["metadata"]["uid"]


async def test_an_edit_of_the_token_replaces_the_job(api: RealApi, real_cluster: Cluster) -> None:
    bench = Bench(api, real_cluster)
    await bench.look()
    api.patch(f"{bench.caches}/llama", {"spec": {"model": {"tokenSecretRef": {"name": "hf"}}}})
    for _ in range(3):
        await bench.look()
    made = api.get(bench.job)
    assert made is not None
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert any(each["name"] == "HF_TOKEN" for each in container["env"])


async def test_a_foreign_claim_is_left_alone(api: RealApi, real_cluster: Cluster) -> None:
    bench = Bench(api, real_cluster)
    folder = bench.claim.rsplit("/", 1)[0]
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    made = api.create(folder, {"metadata": {"name": "llama-modelcache"}, "spec": spec}, dry_run=False)
    assert made.status_code == 201
    status = await bench.look()
    assert status["conditions"][0]["reason"] == "ApplyFailed"
    assert "was not made by the operator" in status["conditions"][0]["message"]
    assert api.get(bench.claim) == made.json()


async def test_deletion_needs_no_operator(api: RealApi, real_cluster: Cluster) -> None:
    bench = Bench(api, real_cluster)
    await bench.look()
    found = api.get(f"{bench.caches}/llama")
    assert found is not None and "finalizers" not in found["metadata"]
    assert api.client.delete(f"{bench.caches}/llama").status_code == 200
    assert api.get(f"{bench.caches}/llama") is None
