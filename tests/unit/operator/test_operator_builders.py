"""The objects themselves: pod, Deployment, Service, HorizontalPodAutoscaler, and the patch merged into the pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from operator_kit import DEFAULTS, owner
from quire_operator import labels
from quire_operator.api import seconds
from quire_operator.policy.plan import strategy_of
from quire_operator.resources import (
    PodDefaults,
    build_deployment,
    build_hpa,
    build_pod_template,
    build_service,
    build_supplies,
)
from quire_operator.resources.args import serve_args
from quire_operator.resources.deadlines import duration_text
from quire_operator.resources.fetching import folder_of
from quire_operator.resources.merge import merge


def template(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    return build_pod_template(owner(spec), DEFAULTS)


def engine(spec: dict[str, Any] | None = None) -> dict[str, Any]:
    (container,) = template(spec)["spec"]["containers"]
    return dict(container)


def test_arguments_are_mapped_mechanically() -> None:
    spec = {
        "model": {"source": "hf://org/name", "revision": "v1", "servedName": "m", "aliases": ["n"]},
        "engine": {
            "maxNumSeqs": 8,
            "enablePrefixCaching": False,
            "kvCacheMemory": "512Mi",
            "queueTimeout": "1m30s",
            "gpuMemoryUtilization": "0.5",
            "extraArgs": ["--enable-prefix-caching=false"],
        },
        "rollout": {"drainTimeout": "2m"},
    }
    assert serve_args(owner(spec)) == [
        "serve",
        "/mnt/model/" + folder_of(owner(spec).spec.model),
        "--served-model-name=m",
        "--served-model-name=n",
        "--host=0.0.0.0",
        "--port=8000",
        "--drain-timeout=120",
        "--enable-prefix-caching=false",
        "--gpu-memory-utilization=0.5",
        "--kv-cache-memory=512Mi",
        "--max-num-seqs=8",
        "--queue-timeout=90",
        "--enable-prefix-caching=false",
    ]


@pytest.mark.parametrize(
    ("source", "argument"),
    [
        ("file:///models/smollm2.gguf", "/models/smollm2.gguf"),
        ("cache://llama", "/mnt/model/content"),
        ("oci://host/m@sha256:" + "0" * 64, "/mnt/model"),
        ("oci://host/m@sha256:" + "0" * 64 + "/a/b", "/mnt/model/a/b"),
        ("pvc://claim/a/b.gguf", "/mnt/model/a/b.gguf"),
        ("pvc://claim", "/mnt/model"),
    ],
)
def test_sources_become_what_the_engine_loads(source: str, argument: str) -> None:
    assert serve_args(owner({"model": {"source": source}}))[1] == argument


def test_a_claim_is_mounted_read_only() -> None:
    pod = template({"model": {"source": "pvc://weights/x"}})["spec"]
    assert {"name": "model", "persistentVolumeClaim": {"claimName": "weights", "readOnly": True}} in pod["volumes"]
    assert {"name": "model", "mountPath": "/mnt/model", "readOnly": True} in pod["containers"][0]["volumeMounts"]


def first(spec: dict[str, Any]) -> dict[str, Any]:
    (container,) = template(spec)["spec"]["initContainers"]
    return dict(container)


TOKEN = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}
GATED = {"source": "hf://org/name", "tokenSecretRef": {"name": "hf", "key": "t"}, "endpoint": "https://hub.example"}


def test_the_token_is_referred_to_and_the_engine_does_not_see_it() -> None:
    assert TOKEN in first({"model": GATED})["env"]
    assert "--endpoint=https://hub.example" in first({"model": GATED})["args"]
    assert not any("valueFrom" in each for each in engine({"model": GATED})["env"])
    asking = engine({"model": GATED, "engine": {"tokenizer": "org/tokenizer"}})["env"]
    assert TOKEN in asking and {"name": "HF_ENDPOINT", "value": "https://hub.example"} in asking
    elsewhere = first({"model": {"source": "https://files.example/m.gguf", "tokenSecretRef": GATED["tokenSecretRef"]}})
    assert {**TOKEN, "name": "QUIRE_FETCH_TOKEN"} in elsewhere["env"] and TOKEN not in elsewhere["env"]


def test_the_token_of_a_role_is_in_the_container_that_fetches_alone() -> None:
    bucket = {
        "source": "s3://bucket/m",
        "s3": {"webIdentity": {"roleArn": "arn:aws:iam::1:role/m", "audience": "store"}},
    }
    pod = template({"model": bucket})["spec"]
    [volume] = [each for each in pod["volumes"] if each["name"] == "identity"]
    [source] = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "store"
    env = {each["name"]: each.get("value") for each in first({"model": bucket})["env"]}
    [mount] = [each for each in first({"model": bucket})["volumeMounts"] if each["name"] == "identity"]
    token = f"{mount['mountPath']}/{source['serviceAccountToken']['path']}"
    assert (env["AWS_WEB_IDENTITY_TOKEN_FILE"], env["AWS_ROLE_ARN"]) == (token, "arn:aws:iam::1:role/m")
    engines = engine({"model": bucket})
    assert not [each for each in engines["volumeMounts"] if each["name"] == "identity"]
    assert not [each for each in engines["env"] if each["name"].startswith("AWS_")]
    assert pod["automountServiceAccountToken"] is False


def test_what_is_fetched_is_what_is_served() -> None:
    for source in ("hf://org/name", "s3://bucket/m", "https://host/m.gguf"):
        spec = {"model": {"source": source}}
        target = next(each for each in first(spec)["args"] if each.startswith("--to="))
        assert target.removeprefix("--to=") == engine(spec)["args"][1]
        [volume] = [each for each in template(spec)["spec"]["volumes"] if each["name"] == "model"]
        assert volume == {"name": "model", "emptyDir": {}}


def test_files_of_another_revision_lie_elsewhere() -> None:
    one, two = ({"source": "hf://org/name", "revision": revision} for revision in ("v1", "v2"))
    assert engine({"model": one})["args"][1] != engine({"model": two})["args"][1]
    same = {"source": "hf://org/name", "revision": "v1", "servedName": "other"}
    assert engine({"model": one})["args"][1] == engine({"model": same})["args"][1]


def test_code_is_fetched_only_where_it_is_run() -> None:
    assert "--code" not in first({"model": {"source": "hf://org/name"}})["args"]
    trusted = {"model": {"source": "hf://org/name"}, "engine": {"extraArgs": ["--trust-remote-code"]}}
    assert "--code" in first(trusted)["args"]
    plain = {"model": {"source": "hf://org/name"}}
    assert engine(trusted)["args"][1] != engine(plain)["args"][1], (
        "a kept folder without it is not taken for one with it"
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--trust-remote-code=true"], True),
        (["--trust-remote-code=False"], False),
        (["--trust-remote-code", "--no-trust-remote-code"], False),
        (["--trust-remote-code=false", "--trust-remote-code"], True),
    ],
)
def test_the_flag_for_code_is_read_as_the_engine_reads_it(arguments: list[str], code: bool) -> None:
    spec = {"model": {"source": "hf://org/name"}, "engine": {"extraArgs": arguments}}
    assert ("--code" in first(spec)["args"]) is code


def test_the_charts_settings_hold_where_the_resource_says_nothing() -> None:
    defaults = replace(
        DEFAULTS, hub_endpoint="https://mirror", https_proxy="http://proxy", no_proxy=".svc", ca_config_map="authority"
    )
    pod = build_pod_template(owner({"model": {"source": "hf://org/name"}}), defaults)["spec"]
    (container,) = pod["initContainers"]
    assert {"--endpoint=https://mirror", "--ca-bundle=/etc/quire/ca/ca.crt"} <= set(container["args"])
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    assert {"name": "ca", "configMap": {"name": "authority"}} in pod["volumes"]
    own = {"source": "hf://org/name", "endpoint": "https://own", "download": {"httpsProxy": "http://other"}}
    (container,) = build_pod_template(owner({"model": own}), defaults)["spec"]["initContainers"]
    assert "--endpoint=https://own" in container["args"]
    assert {"name": "HTTPS_PROXY", "value": "http://other"} in container["env"]
    bucket = build_pod_template(owner({"model": {"source": "s3://bucket/m"}}), defaults)["spec"]["initContainers"][0]
    assert not any(argument.startswith("--endpoint") for argument in bucket["args"]), "a hub is no bucket"


def test_no_pod_waits_for_the_volume_of_another() -> None:
    def volume(cache: dict[str, Any]) -> dict[str, Any]:
        pod = template({"model": {"source": "hf://org/name", "cache": cache}})["spec"]
        return next(each for each in pod["volumes"] if each["name"] == "model")

    claims = {each["kind"] for each in build_supplies(owner(), DEFAULTS)}
    assert "PersistentVolumeClaim" not in claims
    assert "ephemeral" in volume({"size": "1Gi"}), "ReadWriteOnce: a claim per pod"
    assert volume({"size": "1Gi", "accessModes": ["ReadWriteMany"]})["persistentVolumeClaim"] == {
        "claimName": "smol-cache"
    }
    shared = {"source": "hf://org/name", "cache": {"size": "1Gi", "accessModes": ["ReadWriteMany"]}}
    made = {each["kind"]: each for each in build_supplies(owner({"model": shared}), DEFAULTS)}
    assert made["PersistentVolumeClaim"]["metadata"]["name"] == "smol-cache"


@pytest.mark.parametrize(
    ("spec", "startup"),
    [
        ({}, 7200),
        ({"model": {"source": "file:///m", "size": "1Gi"}}, 660),
        ({"model": {"source": "file:///m", "size": "150G"}}, 3600),
        ({"model": {"source": "file:///m", "size": "900T"}}, 86400),
        ({"model": {"source": "file:///m", "size": "150G"}, "startupTimeout": "5m"}, 300),
    ],
)
def test_the_time_to_start_follows_from_the_size(spec: dict[str, Any], startup: int) -> None:
    container = engine(spec)
    probe = container["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == startup
    assert (f"--load-timeout={startup}" in container["args"]) == bool(spec)
    given = engine({**spec, "engine": {"loadTimeout": "7m"}})["args"]
    assert [each for each in given if each.startswith("--load-timeout")] == ["--load-timeout=420"]


@pytest.mark.parametrize(
    ("spec", "deadline"),
    [
        ({}, 1800),
        ({"model": {"source": "file:///m", "size": "1Gi"}}, 1800),
        ({"model": {"source": "file:///m", "size": "150G"}}, 7200),
        ({"model": {"source": "file:///m", "size": "900T"}}, 86400),
        ({"startupTimeout": "1h", "rollout": {"progressDeadline": "5m"}}, 300),
    ],
)
def test_a_rollout_may_stand_still_as_long_as_a_model_of_its_size_takes(spec: dict[str, Any], deadline: int) -> None:
    assert build_deployment(owner(spec), "abc", template(spec), 1)["spec"]["progressDeadlineSeconds"] == deadline
    assert strategy_of(owner(spec).spec).deadline_s == deadline


@pytest.mark.parametrize(("span", "text"), [(0, "0s"), (300, "5m"), (5400, "1h30m"), (3661, "1h1m1s")])
def test_durations_are_told_as_they_are_written(span: int, text: str) -> None:
    assert duration_text(span) == text and seconds(text) == span


def test_gpu_nodes_are_tolerated_and_devices_claimed() -> None:
    assert "tolerations" not in template()["spec"]
    mig = template({"resources": {"gpus": 1, "gpuResourceName": "nvidia.com/mig-1g.10gb"}})["spec"]
    assert mig["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    devices = {"resources": {"devices": {"deviceClassName": "gpu.example", "count": 2}}}
    pod = template(devices)["spec"]
    made = {each["kind"]: each for each in build_supplies(owner(devices), DEFAULTS)}["ResourceClaimTemplate"]
    assert pod["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": made["metadata"]["name"]}]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "devices"}]}
    other = owner({"resources": {"devices": {"deviceClassName": "gpu.example", "count": 3}}})
    [renamed] = [each for each in build_supplies(other, DEFAULTS) if each["kind"] == "ResourceClaimTemplate"]
    assert renamed["metadata"]["name"] != made["metadata"]["name"], "its spec cannot change"


def test_a_policy_can_be_turned_off_here_and_for_all() -> None:
    def kinds(spec: dict[str, Any], defaults: PodDefaults = DEFAULTS) -> set[str]:
        return {each["kind"] for each in build_supplies(owner(spec), defaults)}

    assert kinds({}) == {"ServiceAccount", "PodDisruptionBudget", "NetworkPolicy"}
    assert "NetworkPolicy" not in kinds({"networkPolicy": {"enabled": False}})
    assert "NetworkPolicy" not in kinds({}, replace(DEFAULTS, network_policy=False))
    assert "ServiceAccount" not in kinds({"serviceAccountName": "mine"})


def test_the_pod_meets_the_restricted_standard() -> None:
    pod = template()["spec"]
    (container,) = pod["containers"]
    assert first({"model": GATED})["securityContext"] == container["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_the_pod_outlives_its_drain() -> None:
    pod = template({"rollout": {"drainTimeout": "5m"}})["spec"]
    unroute = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > 300 + unroute
    assert "--drain-timeout=300" in pod["containers"][0]["args"]


def test_probes_follow_the_contract_and_give_time_to_load() -> None:
    container = engine()
    assert container["startupProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "http"}
    assert container["startupProbe"]["failureThreshold"] * container["startupProbe"]["periodSeconds"] >= 3600
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_gpus_become_a_limit_of_the_named_resource() -> None:
    resources = {"gpus": 2, "gpuResourceName": "amd.com/gpu", "requests": {"cpu": 4}, "limits": {"memory": "8Gi"}}
    assert engine({"resources": resources})["resources"] == {
        "requests": {"cpu": "4"},
        "limits": {"memory": "8Gi", "amd.com/gpu": "2"},
    }
    assert "resources" not in engine()


def test_the_template_is_merged_as_kubectl_does() -> None:
    patch = {
        "nodeSelector": {"gpu": "h200"},
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "priorityClassName": "high",
        "containers": [
            {"name": "engine", "env": [{"name": "HOME", "value": "/cache"}, {"name": "A", "value": "b"}]},
            {"name": "sidecar", "image": "other"},
        ],
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}, "emptyDir": None}],
    }
    pod = template({"template": {"spec": patch}})["spec"]
    assert pod["nodeSelector"] == {"gpu": "h200"} and pod["priorityClassName"] == "high"
    assert [container["name"] for container in pod["containers"]] == ["engine", "sidecar"]
    env = {each["name"]: each.get("value") for each in pod["containers"][0]["env"]}
    assert env == {"QUIRE_CACHE_DIR": "/cache", "HF_HOME": "/cache/huggingface", "HOME": "/cache", "A": "b"}
    assert pod["containers"][0]["args"][0] == "serve"
    assert {"name": "cache", "persistentVolumeClaim": {"claimName": "c"}} in pod["volumes"]


def test_merge_directives() -> None:
    base = {"env": [{"name": "a"}, {"name": "b"}], "map": {"x": 1}, "list": [1, 2]}
    patch = {"env": [{"name": "a", "$patch": "delete"}], "map": {"$patch": "replace", "y": 2}, "list": [3]}
    assert merge(base, patch) == {"env": [{"name": "b"}], "map": {"y": 2}, "list": [3]}
    assert base["env"] == [{"name": "a"}, {"name": "b"}], "the base is left alone"


def test_user_labels_join_and_contract_labels_win() -> None:
    metadata = template({"template": {"metadata": {"labels": {"team": "a"}, "annotations": {"n": "1"}}}})["metadata"]
    assert metadata["labels"]["team"] == "a" and metadata["labels"][labels.DEPLOYMENT] == "smol"
    assert metadata["annotations"] == {"n": "1"}


def test_the_deployment_selects_its_own_revision_only() -> None:
    wanted = build_deployment(owner(), "abc", template(), 2, intent="i")
    assert wanted["metadata"]["name"] == "smol-abc"
    selector = wanted["spec"]["selector"]["matchLabels"]
    assert selector == {labels.DEPLOYMENT: "smol", labels.ROLE: "leader", labels.REVISION: "abc"}
    assert selector.items() <= wanted["spec"]["template"]["metadata"]["labels"].items()
    assert wanted["spec"]["template"]["metadata"]["labels"][labels.TRACK] == "stable"
    assert wanted["spec"]["replicas"] == 2


def test_children_are_owned_without_blocking_deletion() -> None:
    for child in (
        build_service(owner()),
        build_deployment(owner(), "abc", template(), 1, intent="i"),
        *build_supplies(owner(), DEFAULTS),
    ):
        (reference,) = child["metadata"]["ownerReferences"]
        assert reference["uid"] == "uid-1" and reference["controller"] and not reference["blockOwnerDeletion"]
        assert "finalizers" not in child["metadata"]


def test_the_service_is_what_the_router_looks_for() -> None:
    service = build_service(owner())
    assert service["metadata"]["name"] == "smol" and service["metadata"]["labels"][labels.DEPLOYMENT] == "smol"
    assert service["spec"]["selector"] == {labels.DEPLOYMENT: "smol", labels.ROLE: "leader"}
    assert service["spec"]["ports"] == [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}]


def test_the_autoscaler_aims_at_the_resource_itself() -> None:
    scaling = {
        "minReplicas": 2,
        "maxReplicas": 5,
        "targets": {"queueSize": "4", "gpuCacheUsage": "0.80"},
        "scaleDown": {"stabilization": "10s"},
    }
    hpa = build_hpa(owner({"autoscaling": scaling}))
    assert hpa is not None
    assert hpa["spec"]["scaleTargetRef"] == {
        "apiVersion": "quire.dev/v1alpha1",
        "kind": "LLMDeployment",
        "name": "smol",
    }
    assert (hpa["spec"]["minReplicas"], hpa["spec"]["maxReplicas"]) == (2, 5)
    assert [metric["pods"]["metric"]["name"] for metric in hpa["spec"]["metrics"]] == [
        "quire_scheduler_queue_size",
        "quire_gpu_cache_usage",
    ]
    assert [metric["pods"]["target"]["averageValue"] for metric in hpa["spec"]["metrics"]] == ["4", "0.80"]
    assert hpa["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 10
    assert build_hpa(owner()) is None
