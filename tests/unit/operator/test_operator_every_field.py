"""Each field of the spec reaches an object: a table with a value for every one, and what is built with and without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from operator_kit import DEFAULTS, owner
from quire_operator.crd.kinds import KINDS
from quire_operator.crd.schema import openapi_schema
from quire_operator.resources import (
    build_deployment,
    build_hpa,
    build_pod_template,
    build_service,
    build_supplies,
)

Spec = dict[str, Any]
HUB = {"source": "hf://org/name"}
BUCKET = {"source": "s3://bucket/m", "s3": {}}
ROLE = {"roleArn": "arn:aws:iam::123456789012:role/a"}
SCALED = {"maxReplicas": 4, "targets": {"queueSize": "4"}}
FETCH = {**HUB, "download": {}}


def model(**more: Any) -> Spec:
    return {"model": {**HUB, **more}}


def role(**more: Any) -> Spec:
    return {"model": {**BUCKET, "s3": {"webIdentity": {**ROLE, **more}}}}


TABLE: dict[str, tuple[Spec, Spec]] = {
    "model.source": ({}, model()),
    "model.revision": (model(), model(revision="v2")),
    "model.servedName": ({"model": {"source": "file:///m"}}, {"model": {"source": "file:///m", "servedName": "x"}}),
    "model.aliases": (model(), model(aliases=["x"])),
    "model.tokenSecretRef.name": (model(), model(tokenSecretRef={"name": "a"})),
    "model.tokenSecretRef.key": (model(tokenSecretRef={"name": "a"}), model(tokenSecretRef={"name": "a", "key": "k"})),
    "model.endpoint": (model(), model(endpoint="https://mirror")),
    "model.sha256": (
        {"model": {"source": "https://h/m.gguf"}}, {"model": {"source": "https://h/m.gguf", "sha256": "0" * 64}}),
    "model.s3.region": ({"model": BUCKET}, {"model": {**BUCKET, "s3": {"region": "eu-west-1"}}}),
    "model.s3.credentialsSecretRef.name": (
        {"model": BUCKET}, {"model": {**BUCKET, "s3": {"credentialsSecretRef": {"name": "a"}}}}),
    "model.s3.webIdentity.roleArn": ({"model": BUCKET}, role()),
    "model.s3.webIdentity.audience": (role(), role(audience="store")),
    "model.s3.webIdentity.endpoint": (role(), role(endpoint="https://sts.store")),
    "model.download.parallel": ({"model": FETCH}, model(download={"parallel": 9})),
    "model.download.attempts": ({"model": FETCH}, model(download={"attempts": 9})),
    "model.download.offline": ({"model": FETCH}, model(download={"offline": True})),
    "model.download.httpsProxy": ({"model": FETCH}, model(download={"httpsProxy": "http://p:1"})),
    "model.download.noProxy": ({"model": FETCH}, model(download={"noProxy": ".svc"})),
    "model.download.caBundle.name": ({"model": FETCH}, model(download={"caBundle": {"name": "a"}})),
    "model.download.caBundle.key": (
        model(download={"caBundle": {"name": "a"}}), model(download={"caBundle": {"name": "a", "key": "k"}})),
    "model.size": (model(), model(size="90Gi")),
    "model.cache.size": (model(cache={"size": "1Gi"}), model(cache={"size": "2Gi"})),
    "model.cache.storageClassName": (
        model(cache={"size": "1Gi"}), model(cache={"size": "1Gi", "storageClassName": "fast"})),
    "model.cache.accessModes": (
        model(cache={"size": "1Gi"}), model(cache={"size": "1Gi", "accessModes": ["ReadWriteMany"]})),
    "model.cache.claimName": (model(), model(cache={"claimName": "c"})),
    "model.cache.hostPath": (model(), model(cache={"hostPath": "/m"})),
    "engine.extraArgs": ({}, {"engine": {"extraArgs": ["--seed=7"]}}),
    "autoscaling.minReplicas": ({"autoscaling": SCALED}, {"autoscaling": {**SCALED, "minReplicas": 2}}),
    "autoscaling.maxReplicas": ({"autoscaling": SCALED}, {"autoscaling": {**SCALED, "maxReplicas": 5}}),
    "autoscaling.targets.queueSize": ({}, {"autoscaling": SCALED}),
    "autoscaling.targets.gpuCacheUsage": (
        {"autoscaling": SCALED}, {"autoscaling": {"maxReplicas": 4, "targets": {"gpuCacheUsage": "0.8"}}}),
    "autoscaling.scaleDown.stabilization": (
        {"autoscaling": SCALED}, {"autoscaling": {**SCALED, "scaleDown": {"stabilization": "1m"}}}),
    "engine.tensorParallelSize": ({}, {"engine": {"tensorParallelSize": 2}}),
    "engine.pipelineParallelSize": ({}, {"engine": {"pipelineParallelSize": 2}}),
    "resources.gpus": ({}, {"resources": {"gpus": 1}}),
    "resources.gpuResourceName": (
        {"resources": {"gpus": 1}}, {"resources": {"gpus": 1, "gpuResourceName": "amd.com/gpu"}}),
    "resources.devices.deviceClassName": ({}, {"resources": {"devices": {"deviceClassName": "g"}}}),
    "resources.devices.count": (
        {"resources": {"devices": {"deviceClassName": "g"}}},
        {"resources": {"devices": {"deviceClassName": "g", "count": 2}}}),
    "resources.devices.selectors": (
        {"resources": {"devices": {"deviceClassName": "g"}}},
        {"resources": {"devices": {"deviceClassName": "g", "selectors": ["true"]}}}),
    "resources.sharedMemory": ({}, {"resources": {"sharedMemory": "8Gi"}}),
    "resources.requests": ({}, {"resources": {"requests": {"cpu": 1}}}),
    "resources.limits": ({}, {"resources": {"limits": {"memory": "1Gi"}}}),
    "startupTimeout": ({}, {"startupTimeout": "5m"}),
    "networkPolicy.enabled": ({}, {"networkPolicy": {"enabled": False}}),
    "networkPolicy.allowFrom": ({}, {"networkPolicy": {"allowFrom": [{"podSelector": {}}]}}),
    "serviceAccountName": ({}, {"serviceAccountName": "a"}),
    "imagePullSecrets": ({}, {"imagePullSecrets": [{"name": "a"}]}),
    "template.metadata.labels": ({}, {"template": {"metadata": {"labels": {"a": "b"}}}}),
    "template.metadata.annotations": ({}, {"template": {"metadata": {"annotations": {"a": "b"}}}}),
    "template.spec": ({}, {"template": {"spec": {"nodeSelector": {"a": "b"}}}}),
    "image": ({}, {"image": "other"}),
    "rollout.drainTimeout": ({}, {"rollout": {"drainTimeout": "5m"}}),
}  # fmt: skip

ELSEWHERE = {
    "autoscaling.scaleDown.idleAfter": "the policy waits for so long: test_operator_zero",
    "replicas": "the policy sizes workloads by it: test_operator_rollout",
    "adapters": "asked of each pod: test_operator_adapters",
    "rollout.": "the policy moves pods by it: test_operator_rollout",
    "engine.": "a flag each: tests/contract/test_contract_engine_flags",
}


def leaves(schema: Spec, path: str = "") -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}".removeprefix(".")
        if child.get("properties"):
            yield from leaves(child, where)
        else:
            yield where


def made(spec: Spec) -> str:
    of = owner(spec)
    everything = [
        *build_supplies(of, DEFAULTS),
        build_service(of),
        build_deployment(of, "abc", build_pod_template(of, DEFAULTS), 1),
        build_hpa(of),
    ]
    return json.dumps(everything, sort_keys=True)


def test_the_table_is_complete() -> None:
    fields = set(leaves(openapi_schema(KINDS[0].model)["properties"]["spec"]))
    elsewhere = {field for field in fields if any(field.startswith(prefix) for prefix in ELSEWHERE)}
    assert fields - elsewhere <= set(TABLE), "give each field a row, or say where its effect is tested"
    assert set(TABLE) <= fields, "a row without a field"


@pytest.mark.parametrize("field", TABLE)
def test_the_field_has_an_effect(field: str) -> None:
    without, with_it = TABLE[field]
    assert made(without) != made(with_it)
