"""`spec.resources`, `spec.networkPolicy` and `spec.template`: what every pod gets beyond the engine's flags."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from quire_operator.api.base import ApiModel, ObjectName, Quantity, Size, rule, rules, text_rule


class Devices(ApiModel):
    """GPUs through dynamic resource allocation: a ResourceClaimTemplate, and a claim of every pod."""

    device_class_name: ObjectName = Field(description="DeviceClass of the driver, such as gpu.nvidia.com.")
    count: int = Field(default=1, ge=1, le=64, description="Devices of each pod, 1 to 64. Default: 1.")
    selectors: tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...] = Field(
        default=(),
        max_length=8,
        description=(
            "CEL expressions that every device must fulfil, such as "
            "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0; at most 8. Default: none."
        ),
    )


class Resources(ApiModel):
    """Compute resources of the engine container."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.devices) || !has(self.gpus) || self.gpus == 0",
                "gpus and devices exclude each other: gpus counts an extended resource, devices asks a DRA driver; remove one of them",
            ),
            rule(
                "!has(self.limits) || !has(self.gpuResourceName) || !(self.gpuResourceName in self.limits)",
                "limits must not name the GPU resource a second time: say it in gpus",
            ),
            rule(
                "!has(self.requests) || !has(self.gpuResourceName) || !(self.gpuResourceName in self.requests)",
                "requests must not name the GPU resource a second time: say it in gpus",
            ),
        )
    )

    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of each pod, 0 to 64; 0 runs on the CPU. Default: 0.")
    gpu_resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        json_schema_extra=rules(
            text_rule("self.contains('/')", "gpuResourceName must be an extended resource such as nvidia.com/gpu")
        ),
        description=(
            "Extended resource that stands for a GPU: nvidia.com/gpu or amd.com/gpu, nvidia.com/gpu.shared for time slices, "
            "nvidia.com/mig-3g.40gb for a MIG profile. Default: nvidia.com/gpu."
        ),
    )
    devices: Devices | None = Field(
        default=None, description="GPUs through dynamic resource allocation (Kubernetes 1.34), instead of gpus."
    )
    shared_memory: Size = Field(
        default="1Gi",
        description="Size of /dev/shm. What is used of it counts as the container's memory. Default: 1Gi.",
    )
    requests: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description='What the scheduler reserves, as {cpu: "4", memory: 32Gi}. Default: nothing.',
    )
    limits: dict[str, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the container may use at most. The engine sizes its threads and its KV pool by it. Default: no limit.",
    )


class NetworkPolicy(ApiModel):
    """Who may reach the pods."""

    enabled: bool = Field(
        default=True,
        description=(
            "Admit only the router, the operator and the pods of this LLMDeployment to the engine's port. The chart's "
            "networkPolicy.enabled turns it off for all. Default: true."
        ),
    )
    allow_from: tuple[dict[str, Any], ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={
            "items": {
                "type": "object",
                "description": "A NetworkPolicyPeer.",
                "x-kubernetes-preserve-unknown-fields": True,
            }
        },
        description=(
            "Further peers, each a NetworkPolicyPeer with podSelector, namespaceSelector or ipBlock: Prometheus, or clients that "
            "use the pods' own Service; at most 32. Default: none."
        ),
    )


class TemplateMetadata(ApiModel):
    """Labels and annotations added to every pod."""

    labels: dict[str, str] = Field(
        default_factory=dict,
        max_length=32,
        json_schema_extra=rules(
            rule(
                "self.all(key, !key.startsWith('quire.dev/') && !key.startsWith('app.kubernetes.io/'))",
                "labels under quire.dev/ and app.kubernetes.io/ belong to the operator: choose another key",
            )
        ),
        description="Labels added to every pod; at most 32. Default: none.",
    )
    annotations: dict[str, str] = Field(
        default_factory=dict,
        max_length=32,
        description="Annotations added to every pod; at most 32. Default: none.",
    )


class Template(ApiModel):
    """Strategic-merge patch on the pods."""

    metadata: TemplateMetadata = Field(
        default_factory=TemplateMetadata, description="Labels and annotations added to every pod."
    )
    spec: dict[str, Any] = Field(
        default_factory=dict,
        json_schema_extra={"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        description=(
            "Patch on the pod's spec, merged as kubectl does: containers and volumes by name (the engine's container is "
            "`engine`), mounts by mountPath, other lists replaced. For nodeSelector, tolerations, affinity, runtimeClassName, "
            "priorityClassName, env, envFrom, volumes, sidecars, imagePullSecrets. What the API server does not know in it shows "
            "in the condition Progressing. Default: nothing."
        ),
    )
