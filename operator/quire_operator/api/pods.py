"""`spec.resources` and `spec.template`: what every pod gets beyond the engine's flags."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from quire_operator.api.base import ApiModel, Quantity, rule, rules, text_rule


class Resources(ApiModel):
    """Compute resources of the engine container."""

    gpus: int = Field(default=0, ge=0, le=64, description="GPUs of each pod, 0 to 64; 0 runs on the CPU. Default: 0.")
    gpu_resource_name: str = Field(
        default="nvidia.com/gpu",
        min_length=1,
        max_length=253,
        json_schema_extra=rules(
            text_rule("self.contains('/')", "gpuResourceName must be an extended resource such as nvidia.com/gpu")
        ),
        description="Extended resource that stands for a GPU. Default: nvidia.com/gpu.",
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
