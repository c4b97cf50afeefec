"""One LLMDeployment spec per feature of the pods: for snapshots, and for a real API server."""

from __future__ import annotations

from typing import Any

DIGEST = "sha256:" + "0123456789abcdef" * 4
HUB = {"source": "hf://org/name", "revision": "v1"}

SPECS: dict[str, dict[str, Any]] = {
    "least": {},
    "units": {
        "engine": {"tensorParallelSize": 4, "pipelineParallelSize": 2},
        "resources": {"gpus": 4},
        "replicas": 3,
    },
    "hub": {
        "model": {
            **HUB,
            "servedName": "org/name",
            "aliases": ["m"],
            "tokenSecretRef": {"name": "hf"},
            "endpoint": "https://hub.mirror.example",
            "size": "15Gi",
            "download": {
                "parallel": 2,
                "attempts": 20,
                "httpsProxy": "http://proxy:3128",
                "noProxy": ".svc,.cluster.local",
                "caBundle": {"name": "authority", "key": "all.pem"},
            },
        },
    },
    "bucket": {
        "model": {
            "source": "s3://bucket/models/m",
            "endpoint": "http://store:9000",
            "s3": {"region": "eu-west-1", "credentialsSecretRef": {"name": "keys"}},
        },
    },
    "bucket-role": {
        "model": {
            "source": "s3://bucket/models/m",
            "s3": {
                "region": "eu-west-1",
                "webIdentity": {
                    "roleArn": "arn:aws:iam::123456789012:role/models",
                    "audience": "store",
                    "endpoint": "https://sts.store.example",
                },
            },
        },
        "serviceAccountName": "models",
    },
    "address": {
        "model": {"source": "https://files.example/m.gguf", "sha256": "0" * 64, "download": {"offline": True}},
        "startupTimeout": "30m",
    },
    "claim": {"model": {"source": "pvc://weights/llama/8b"}},
    "image": {"model": {"source": f"oci://registry.example/org/m@{DIGEST}/models/m"}},
    "model-cache": {"model": {"source": "cache://llama"}, "startupTimeout": "45m"},
    "claim-per-pod": {"model": {**HUB, "cache": {"size": "20Gi", "storageClassName": "fast"}}, "replicas": 3},
    "shared-claim": {"model": {**HUB, "cache": {"size": "20Gi", "accessModes": ["ReadWriteMany"]}}},
    "claim-of-yours": {"model": {**HUB, "cache": {"claimName": "models"}}},
    "node-local": {"model": {**HUB, "cache": {"hostPath": "/var/lib/quire-models"}}},
    "gpus": {
        "resources": {
            "gpus": 2,
            "requests": {"cpu": 4, "memory": "32Gi"},
            "limits": {"memory": "64Gi"},
            "sharedMemory": "16Gi",
        },
        "model": HUB,
    },
    "mig": {"resources": {"gpus": 1, "gpuResourceName": "nvidia.com/mig-1g.10gb"}},
    "devices": {
        "resources": {
            "devices": {
                "deviceClassName": "gpu.nvidia.com",
                "count": 2,
                "selectors": ["device.attributes['gpu.nvidia.com'].productName == 'H200'"],
            }
        }
    },
    "pod-patch": {
        "serviceAccountName": "models",
        "imagePullSecrets": [{"name": "registry"}],
        "networkPolicy": {"allowFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "template": {
            "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
            "spec": {
                "nodeSelector": {"gpu": "h200"},
                "runtimeClassName": "nvidia",
                "priorityClassName": "system-node-critical",
                "tolerations": [{"key": "dedicated", "operator": "Exists"}],
                "containers": [
                    {
                        "name": "engine",
                        "env": [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                        "envFrom": [{"configMapRef": {"name": "c"}}],
                    },
                ],
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": {"matchLabels": {"quire.dev/deployment": "smol"}},
                    }
                ],
            },
        },
    },
    "autoscaled": {"autoscaling": {"minReplicas": 1, "maxReplicas": 4, "targets": {"queueSize": "4"}}},
}
