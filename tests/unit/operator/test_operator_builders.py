"""The objects themselves: pod, Deployment, Service, HorizontalPodAutoscaler, and the patch merged into the pod."""

from __future__ import annotations

from typing import Any

import pytest

from operator_kit import DEFAULTS, owner
from quire_operator import labels
from quire_operator.resources import build_deployment, build_hpa, build_pod_template, build_service
from quire_operator.resources.args import serve_args
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
        "org/name",
        "--served-model-name=m",
        "--served-model-name=n",
        "--host=0.0.0.0",
        "--port=8000",
        "--revision=v1",
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
        ("hf://org/name", "org/name"),
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


def test_the_token_is_referred_to_never_copied() -> None:
    container = engine(
        {
            "model": {
                "source": "hf://org/name",
                "tokenSecretRef": {"name": "hf", "key": "t"},
                "endpoint": "https://hub.example",
            }
        }
    )
    env = {each["name"]: each for each in container["env"]}
    assert env["HF_TOKEN"] == {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}}
    assert env["HF_ENDPOINT"]["value"] == "https://hub.example"


def test_the_pod_meets_the_restricted_standard() -> None:
    pod = template()["spec"]
    (container,) = pod["containers"]
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
    wanted = build_deployment(owner(), "abc", template(), 2)
    assert wanted["metadata"]["name"] == "smol-abc"
    selector = wanted["spec"]["selector"]["matchLabels"]
    assert selector == {labels.DEPLOYMENT: "smol", labels.ROLE: "leader", labels.REVISION: "abc"}
    assert selector.items() <= wanted["spec"]["template"]["metadata"]["labels"].items()
    assert wanted["spec"]["template"]["metadata"]["labels"][labels.TRACK] == "stable"
    assert wanted["spec"]["replicas"] == 2


def test_children_are_owned_without_blocking_deletion() -> None:
    for child in (build_service(owner()), build_deployment(owner(), "abc", template(), 1)):
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
