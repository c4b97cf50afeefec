"""Every rule of the definitions on a real API server: what it refuses, with its sentence, and what it lets pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from quire_operator.api import Spec
from quire_operator.crd.kinds import KINDS
from quire_operator.crd.schema import openapi_schema
from real_api import RealApi

pytestmark = pytest.mark.timeout(3600)  # the programs are built where they are not there yet

ROOT = Path(__file__).resolve().parents[3]
Object = dict[str, Any]
HF = {"source": "hf://org/name"}
LARGE = "s3://bucket/models/m"
ROLE = "arn:aws:iam::123456789012:role/models"
DIGEST = "sha256:" + "a" * 64


def path(plural: str) -> str:
    return f"/apis/quire.dev/v1alpha1/namespaces/demo/{plural}"


def an(kind: str, spec: Object, name: str = "smol") -> Object:
    return {"apiVersion": "quire.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def llmd(**spec: Any) -> Object:
    return an("LLMDeployment", {"model": HF, **spec})


def scaling(**more: Any) -> Object:
    return {"maxReplicas": 4, "targets": {"queueSize": "4"}, **more}


def cache(**more: Any) -> Object:
    return an("ModelCache", {"model": HF, "size": "2Gi", **more})


def adapter(**more: Any) -> Object:
    return an("LLMAdapter", {"deployment": "smol", "source": "hf://org/lora", **more})


def canary(*steps: Object) -> Object:
    return {"strategy": "Canary", "canary": {"steps": list(steps)}}


PLURALS = {"LLMDeployment": "llmdeployments", "ModelCache": "modelcaches", "LLMAdapter": "llmadapters"}

VALID: dict[str, Object] = {
    "least": llmd(),
    "empty rollout": llmd(rollout={}),
    "surge 0": llmd(rollout={"maxSurge": 0, "maxUnavailable": 1}),
    "recreate": llmd(rollout={"strategy": "Recreate", "maxSurge": 0, "maxUnavailable": 0}),
    "canary": llmd(
        rollout=canary({"weight": 5}, {"weight": 50, "pause": "1h30m"}, {"weight": 100, "pause": "indefinite"})
    ),
    "blue-green": llmd(rollout={"strategy": "BlueGreen", "maxSurge": 0, "blueGreen": {"pause": "indefinite"}}),
    "autoscaling": llmd(autoscaling=scaling(minReplicas=4)),
    "to zero": llmd(autoscaling=scaling(minReplicas=0)),
    "to zero soon": llmd(autoscaling=scaling(minReplicas=0, scaleDown={"idleAfter": "10s"})),
    "units": llmd(engine={"tensorParallelSize": 8, "pipelineParallelSize": 2}, resources={"gpus": 8}),
    "ranks of one pod": llmd(engine={"tensorParallelSize": 2}, resources={"gpus": 8}),
    "ranks without GPUs": llmd(engine={"pipelineParallelSize": 3}),
    "adapters": llmd(adapters=[{"name": "a", "source": "file:///a"}, {"name": "b", "source": "hf://org/lora"}]),
    "file of a repository": llmd(model={"source": "hf://org/name/q4/file.gguf"}),
    "claim": llmd(model={"source": "pvc://claim/a/b"}),
    "bucket": llmd(
        model={
            "source": LARGE,
            "endpoint": "http://store:9000",
            "s3": {"region": "eu-west-1", "credentialsSecretRef": {"name": "keys"}},
            "download": {
                "parallel": 8,
                "offline": True,
                "httpsProxy": "http://proxy:3128",
                "noProxy": ".svc",
                "caBundle": {"name": "ca"},
            },
            "cache": {"size": "20Gi", "accessModes": ["ReadWriteMany"], "storageClassName": "nfs"},
        }
    ),
    "address": llmd(
        model={"source": "https://host/a/m.gguf", "sha256": "0" * 64, "tokenSecretRef": {"name": "t"}, "size": "4Gi"}
    ),
    "image": llmd(model={"source": f"oci://registry:5000/org/m@{DIGEST}/models/m"}),
    "shared model": llmd(model={"source": "cache://smol"}),
    "own claim": llmd(model={**HF, "cache": {"claimName": "c"}}),
    "node": llmd(model={**HF, "cache": {"hostPath": "/var/lib/models"}}),
    "gpus": llmd(resources={"gpus": 2, "gpuResourceName": "nvidia.com/mig-1g.10gb", "limits": {"memory": "8Gi"}}),
    "devices": llmd(
        resources={
            "devices": {"deviceClassName": "gpu.nvidia.com", "count": 2, "selectors": ["device.driver == 'x'"]},
            "sharedMemory": "16Gi",
        }
    ),
    "policy": llmd(networkPolicy={"enabled": True, "allowFrom": [{"ipBlock": {"cidr": "198.18.0.0/16"}}]}),
    "account": llmd(serviceAccountName="models", imagePullSecrets=[{"name": "r"}], startupTimeout="30m"),
    "arguments": llmd(engine={"extraArgs": ["--trust-remote-code", "--seed=1"], "queueTimeout": "1h30m"}),
    "labels": llmd(template={"metadata": {"labels": {"team": "a"}}}),
    "role": llmd(
        model={"source": LARGE, "s3": {"webIdentity": {"roleArn": ROLE, "audience": "a", "endpoint": "http://sts"}}}
    ),
    "role of a cache": cache(
        model={"source": LARGE, "s3": {"webIdentity": {"roleArn": ROLE}}}, serviceAccountName="models"
    ),
    "model cache": cache(
        evictAfter="24h", accessModes=["ReadWriteOnce"], code=True, resources={"limits": {"memory": "1Gi", "cpu": 1}}
    ),
    "adapter": adapter(servedName="org/support"),
    "adapter in the pod": adapter(source="file:///mnt/adapters/a"),
}

INVALID: dict[str, tuple[Object, str]] = {
    "name": (an("LLMDeployment", {"model": HF}, "7b"), "metadata.name must have at most 40 characters"),
    "long name": (an("LLMDeployment", {"model": HF}, "a" * 41), "metadata.name must have at most 40 characters"),
    "both sizes": (llmd(replicas=1, autoscaling=scaling()), "replicas and autoscaling exclude each other"),
    "stuck": (llmd(rollout={"maxSurge": 0}), "maxSurge and maxUnavailable must not both be 0"),
    "stuck canary": (
        llmd(rollout={**canary({"weight": 5}), "maxSurge": 0}), "maxSurge and maxUnavailable must not both be 0"),
    "no steps": (llmd(rollout={"strategy": "Canary"}), "strategy Canary needs canary.steps"),
    "empty steps": (llmd(rollout=canary()), "steps"),
    "falling": (llmd(rollout=canary({"weight": 50}, {"weight": 20})), "the weights of canary.steps must rise"),
    "equal": (llmd(rollout=canary({"weight": 50}, {"weight": 50})), "the weights of canary.steps must rise"),
    "weight": (llmd(rollout=canary({"weight": 101})), "weight"),
    "pause": (llmd(rollout=canary({"weight": 5, "pause": "soon"})), "must be a duration up to 168h"),
    "long pause": (llmd(rollout=canary({"weight": 5, "pause": "169h"})), "must be a duration up to 168h"),
    "no pause": (llmd(rollout={"blueGreen": {"pause": ""}}), "must be a duration up to 168h"),
    "delay": (llmd(rollout={"blueGreen": {"scaleDownDelay": "25h"}}), "must be a duration from 0s to 24h"),
    "deadline": (llmd(rollout={"progressDeadline": "5s"}), "must be a duration from 10s to 24h"),
    "drain": (llmd(rollout={"drainTimeout": "25h"}), "must be a duration from 0s to 24h"),
    "duration": (llmd(engine={"queueTimeout": "5 minutes"}), "must be a duration of hours, minutes and seconds"),
    "bounds": (llmd(autoscaling=scaling(minReplicas=5)), "minReplicas must not be above maxReplicas"),
    "no target": (llmd(autoscaling=scaling(targets={})), "targets needs at least one of queueSize and gpuCacheUsage"),
    "target": (llmd(autoscaling=scaling(targets={"queueSize": "0"})), "must be a number above 0"),
    "share": (llmd(autoscaling=scaling(targets={"gpuCacheUsage": "80"})), "must be a share above 0 and up to 1"),
    "stabilization": (
        llmd(autoscaling=scaling(scaleDown={"stabilization": "2h"})), "must be a duration from 0s to 1h"),
    "less than zero": (llmd(autoscaling=scaling(minReplicas=-1)), "minReplicas"),
    "idle with a replica that stays": (
        llmd(autoscaling=scaling(scaleDown={"idleAfter": "5m"})), "set minReplicas to 0, or remove idleAfter"),
    "idle for a moment": (
        llmd(autoscaling=scaling(minReplicas=0, scaleDown={"idleAfter": "9s"})), "must be a duration from 10s to 24h"),
    "adapters": (
        llmd(adapters=[{"name": "a", "source": "file:///a"}, {"name": "a", "source": "file:///b"}]),
        "adapters must have names of their own"),
    "an adapter with the model's name": (
        llmd(model={**HF, "servedName": "a"}, adapters=[{"name": "a", "source": "file:///a"}]),
        "adapters must not be named like the model"),
    "an adapter with another name of the model": (
        llmd(model={**HF, "aliases": ["b", "a"]}, adapters=[{"name": "a", "source": "file:///a"}]),
        "adapters must not be named like the model"),
    "ranks": (
        llmd(engine={"tensorParallelSize": 6}, resources={"gpus": 4}), "must be a multiple of the GPUs of each pod"),
    "ranks of devices": (
        llmd(engine={"tensorParallelSize": 3}, resources={"devices": {"deviceClassName": "g", "count": 2}}),
        "must be a multiple of the GPUs of each pod"),
    "too many ranks": (
        llmd(engine={"tensorParallelSize": 16, "pipelineParallelSize": 16}, resources={"gpus": 2}),
        "needs more than 64 pods for each replica"),
    "adapter": (
        llmd(adapters=[{"name": "a", "source": "lora"}]), "source must be hf://ORG/NAME or file:///PATH, a folder in"),
    "source": (llmd(model={"source": "smollm2"}), "source must be hf://ORG/NAME"),
    "way out": (llmd(model={"source": "file:///a/../b"}), "source must be hf://ORG/NAME"),
    "tag": (llmd(model={"source": "oci://registry/m:v1"}), "must name its image by digest"),
    "web folder": (llmd(model={"source": "https://host/folder"}), "must name a .gguf file"),
    "endpoint": (llmd(model={**HF, "endpoint": "hub.example"}), "endpoint must be an http:// or https:// address"),
    "endpoint without hub": (
        llmd(model={"source": "pvc://c/m", "endpoint": "https://hub.example"}), "endpoint has an effect only with"),
    "token without hub": (
        llmd(model={"source": "pvc://c/m", "tokenSecretRef": {"name": "t"}}), "tokenSecretRef has an effect only with"),
    "token in the clear": (
        llmd(model={"source": "http://h/m.gguf", "tokenSecretRef": {"name": "t"}}), "tokenSecretRef has an effect only"),
    "digest": (llmd(model={"source": "https://h/m.gguf", "sha256": "A" * 64}), "64 hexadecimal digits in lower case"),
    "digest of a hub": (llmd(model={**HF, "sha256": "0" * 64}), "sha256 is for https:// sources"),
    "s3 of a hub": (llmd(model={**HF, "s3": {"region": "a"}}), "s3 has an effect only with an s3:// source"),
    "region": (llmd(model={"source": LARGE, "s3": {"region": "EU"}}), "region must be a name"),
    "two ways to a bucket": (
        llmd(model={"source": LARGE, "s3": {"credentialsSecretRef": {"name": "k"}, "webIdentity": {"roleArn": ROLE}}}),
        "credentialsSecretRef and webIdentity exclude each other"),
    "role": (llmd(model={"source": LARGE, "s3": {"webIdentity": {"roleArn": "models"}}}), "roleArn must be an ARN"),
    "exchange": (
        llmd(model={"source": LARGE, "s3": {"webIdentity": {"roleArn": ROLE, "endpoint": "sts"}}}),
        "endpoint of webIdentity must be an http:// or https:// address"),
    "proxy": (
        llmd(model={**HF, "download": {"httpsProxy": "http://user:word@proxy"}}), "httpsProxy must be http://HOST:PORT"),
    "download of a claim": (
        llmd(model={"source": "pvc://c", "download": {"parallel": 2}}), "download has an effect only with"),
    "cache of a claim": (llmd(model={"source": "pvc://c", "cache": {"size": "1Gi"}}), "cache has an effect only with"),
    "two caches": (
        llmd(model={**HF, "cache": {"size": "1Gi", "claimName": "c"}}), "cache needs exactly one of size"),
    "no cache": (llmd(model={**HF, "cache": {}}), "cache needs exactly one of size"),
    "class of a claim": (
        llmd(model={**HF, "cache": {"claimName": "c", "storageClassName": "x"}}), "belong to a new claim"),
    "host path": (llmd(model={**HF, "cache": {"hostPath": "models"}}), "hostPath must be an absolute path"),
    "size": (llmd(model={**HF, "size": "4 GB"}), "must be a size such as 512Mi or 4Gi"),
    "served name": (llmd(model={**HF, "servedName": "a b"}), "must be 1 to 128 letters, digits"),
    "secret name": (llmd(model={**HF, "tokenSecretRef": {"name": "My_Secret"}}), "must be the name of an object"),
    "startup": (llmd(startupTimeout="10s"), "must be a duration from 1m to 24h"),
    "gpu twice": (
        llmd(resources={"gpus": 1, "limits": {"nvidia.com/gpu": 1}}), "limits must not name the GPU resource"),
    "gpu requested": (
        llmd(resources={"gpus": 1, "requests": {"nvidia.com/gpu": 1}}), "requests must not name the GPU resource"),
    "gpu name": (llmd(resources={"gpuResourceName": "gpu"}), "gpuResourceName must be an extended resource"),
    "two ways to a gpu": (
        llmd(resources={"gpus": 1, "devices": {"deviceClassName": "g"}}), "gpus and devices exclude each other"),
    "argument": (llmd(engine={"extraArgs": ["seed 1"]}), "each of extraArgs must be one --flag or --flag=value"),
    "owned argument": (llmd(engine={"extraArgs": ["--port=1"]}), "extraArgs must not set a flag that the operator sets"),
    "contract label": (
        llmd(template={"metadata": {"labels": {"quire.dev/track": "x"}}}), "belong to the operator"),
    "cache name": (an("ModelCache", {"model": HF, "size": "1Gi"}, "a.b"), "becomes part of the names of a claim"),
    "cache of nothing": (cache(model={"source": "pvc://c"}), "source of a ModelCache must be hf://"),
    "eviction": (cache(evictAfter="1s"), "must be a duration from 1m to 8760h"),
    "adapter source": (adapter(source="s3://b/l"), "source must be hf://ORG/NAME or file:///PATH"),
}  # fmt: skip

CHANGED: dict[str, tuple[Object, Object, str | None]] = {
    "shared class": (
        llmd(model={**HF, "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}),
        llmd(model={**HF, "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"], "storageClassName": "x"}}),
        "storageClassName of a shared claim cannot change",
    ),
    "shared size": (
        llmd(model={**HF, "cache": {"size": "2Gi", "accessModes": ["ReadWriteMany"]}}),
        llmd(model={**HF, "cache": {"size": "1500Mi", "accessModes": ["ReadWriteMany"]}}),
        "size of a shared claim can grow but not shrink",
    ),
    "shared growth": (
        llmd(model={**HF, "cache": {"size": "2Gi", "accessModes": ["ReadWriteMany"]}}),
        llmd(model={**HF, "cache": {"size": "3000Mi", "accessModes": ["ReadWriteMany"]}}),
        None,
    ),
    "own class": (
        llmd(model={**HF, "cache": {"size": "2Gi"}}),
        llmd(model={**HF, "cache": {"size": "1Gi", "storageClassName": "x"}}),
        None,
    ),
    "autoscaler": (
        llmd(autoscaling=scaling()), llmd(autoscaling=scaling(), replicas=3), None),
    "cached model": (cache(), cache(model={"source": "hf://org/other"}), "source and revision of a ModelCache cannot"),
    "cached revision": (cache(), cache(model={**HF, "revision": "v2"}), "source and revision of a ModelCache cannot"),
    "cached token": (cache(), cache(model={**HF, "tokenSecretRef": {"name": "t"}}), None),
    "claim size": (cache(), cache(size="1Gi"), "size of a claim can grow but not shrink"),
    "claim class": (cache(), cache(storageClassName="x"), "storageClassName of a claim cannot change"),
    "claim code": (cache(), cache(code=True), "code of a ModelCache cannot change"),
    "claim modes": (cache(), cache(accessModes=["ReadWriteOnce"]), "accessModes of a claim cannot change"),
    "adapter's owner": (adapter(), adapter(deployment="other"), "deployment cannot change"),
    "adapter's source": (adapter(), adapter(source="hf://org/lora2"), None),
}  # fmt: skip


@pytest.mark.parametrize("case", VALID)
def test_what_is_right_is_stored(api: RealApi, case: str) -> None:
    body = VALID[case]
    answer = api.create(path(PLURALS[body["kind"]]), body)
    assert answer.status_code == 201, answer.json()["message"]
    if body["kind"] == "LLMDeployment":
        Spec.model_validate(answer.json()["spec"])  # what the server stores, defaults included, the operator reads


@pytest.mark.parametrize("case", INVALID)
def test_what_is_wrong_is_refused_with_a_sentence(api: RealApi, case: str) -> None:
    body, sentence = INVALID[case]
    answer = api.create(path(PLURALS[body["kind"]]), body)
    assert answer.status_code == 422, answer.text
    assert sentence in answer.json()["message"]


@pytest.mark.parametrize("case", CHANGED)
def test_what_cannot_change(api: RealApi, case: str) -> None:
    before, after, sentence = CHANGED[case]
    name = "changed-" + case.replace(" ", "-").replace("'", "")
    where = path(PLURALS[before["kind"]])
    made = api.create(where, {**before, "metadata": {"name": name}}, dry_run=False)
    assert made.status_code == 201, made.text
    answer = api.replace(f"{where}/{name}", {**after, "metadata": made.json()["metadata"]})
    if sentence is None:
        assert answer.status_code == 200, answer.text
    else:
        assert answer.status_code == 422 and sentence in answer.json()["message"], answer.text


def messages(schema: Object) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for child in schema.get("properties", {}).values():
        yield from messages(child)
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from messages(schema[word])


def test_every_rule_has_a_case() -> None:
    sentences = [sentence for _, sentence in INVALID.values()]
    sentences += [sentence for _, _, sentence in CHANGED.values() if sentence is not None]
    rules = {message for kind in KINDS for message in messages(openapi_schema(kind.model))}
    assert rules
    assert not {rule for rule in rules if not any(sentence in rule for sentence in sentences)}


def test_an_unknown_field_is_refused_by_name(api: RealApi) -> None:
    answer = api.create(path("llmdeployments"), llmd(engine={"maxNumSeq": 8}))
    assert answer.status_code == 400 and 'unknown field "spec.engine.maxNumSeq"' in answer.json()["message"]


def test_explain_reads_well(api: RealApi) -> None:
    text = api.kubectl("explain", "llmd.spec.engine")
    assert "Flags of the engine; each is the flag of `quire serve` with the same name." in text
    assert "maxNumSeqs" in text and "Sequences in one step at most. Default: 64." in text
    cache_text = api.kubectl("explain", "llmd.spec.model.cache")
    assert "hostPath" in cache_text and "exactly one of size" in " ".join(cache_text.split())


def test_columns_are_printed(api: RealApi) -> None:
    made = api.create(path("llmdeployments"), an("LLMDeployment", {"model": HF}, "printed"), dry_run=False)
    assert made.status_code == 201
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "Answering", "message": "m",
                        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}],
        "summary": "1/1",
        "revisions": [{"name": "abc", "track": "stable", "replicas": 1, "ready": 1}],
        "autoscaling": {"metrics": [{"name": "queueSize", "value": "3", "state": "Fresh"}]},
    }  # fmt: skip
    answer = api.client.patch(
        f"{path('llmdeployments')}/printed/status",
        json={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status_code == 200, answer.text
    header, row = api.kubectl("get", "llmd", "printed", "-n", "demo").splitlines()
    assert header.split() == ["NAME", "READY", "REPLICAS", "REVISION", "QUEUE", "CACHE", "AGE"]
    assert row.split()[:5] == ["printed", "True", "1/1", "abc", "3"]
    assert "printed" in api.kubectl("get", "all", "-n", "demo", "-o", "name")


def test_scale_is_a_subresource(api: RealApi) -> None:
    made = api.create(
        path("llmdeployments"), an("LLMDeployment", {"model": HF, "replicas": 1}, "scaled"), dry_run=False
    )
    assert made.status_code == 201
    api.kubectl("scale", "llmd/scaled", "-n", "demo", "--replicas=3")
    assert api.client.get(f"{path('llmdeployments')}/scaled").json()["spec"]["replicas"] == 3


def test_the_examples_of_the_reference_are_valid(api: RealApi) -> None:
    for kind in KINDS:
        spec = yaml.safe_load(kind.example)["spec"]
        assert api.create(path(kind.plural), an(kind.name, spec)).status_code == 201


@pytest.mark.parametrize("file", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda file: str(file.name))
def test_every_example_is_valid(api: RealApi, file: Path) -> None:
    for body in yaml.safe_load_all(file.read_text()):
        answer = api.create(path(PLURALS[body["kind"]]), body)
        assert answer.status_code == 201, answer.text


def test_there_is_an_example_of_every_source_and_strategy() -> None:
    bodies = [body for file in (ROOT / "examples").glob("*.yaml") for body in yaml.safe_load_all(file.read_text())]
    models = [body["spec"]["model"]["source"] for body in bodies if "model" in body["spec"]]
    assert {source.partition("://")[0] for source in models} == {"hf", "s3", "https", "cache", "pvc", "oci", "file"}
    strategies = {body["spec"].get("rollout", {}).get("strategy") for body in bodies} - {None}
    schema = openapi_schema(KINDS[0].model)["properties"]["spec"]["properties"]
    assert strategies == set(schema["rollout"]["properties"]["strategy"]["enum"])
    assert {body["kind"] for body in bodies} == set(PLURALS)
