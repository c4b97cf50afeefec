"""The API types of quire.dev/v1alpha1: the only place where a field of LLMDeployment, ModelCache and LLMAdapter is written.

The CRD's schema, its CEL rules and the field reference in docs/ are generated from these models by
`python -m quire_operator.crd`. A leaf of the package: no I/O, no Kubernetes client, no settings.
"""

from quire_operator.api.adapter import Adapter, AdapterPod, AdapterState, LLMAdapter, LLMAdapterSpec, LLMAdapterStatus
from quire_operator.api.base import seconds, size_bytes
from quire_operator.api.cache import Cache
from quire_operator.api.download import S3, ConfigMapKey, Download, SecretKey, SecretName, WebIdentity
from quire_operator.api.engine import OPERATOR_OWNED_FLAGS, Engine
from quire_operator.api.llmdeployment import NAME_MAX, LLMDeployment, Spec
from quire_operator.api.model import DOWNLOADED, Model, Origin
from quire_operator.api.modelcache import CachePhase, ModelCache, ModelCacheSpec, ModelCacheStatus
from quire_operator.api.pods import Devices, NetworkPolicy, Resources, Template, TemplateMetadata
from quire_operator.api.rollout import INDEFINITE, BlueGreen, Canary, CanaryStep, Rollout
from quire_operator.api.scaling import Autoscaling, ScaleDown, Targets
from quire_operator.api.status import (
    AdapterStatus,
    AutoscalingStatus,
    Condition,
    MetricState,
    MetricStatus,
    Phase,
    RevisionStatus,
    RolloutControl,
    RolloutStatus,
    Status,
)

__all__ = [
    "DOWNLOADED",
    "INDEFINITE",
    "NAME_MAX",
    "OPERATOR_OWNED_FLAGS",
    "S3",
    "Adapter",
    "AdapterPod",
    "AdapterState",
    "AdapterStatus",
    "Autoscaling",
    "AutoscalingStatus",
    "BlueGreen",
    "Cache",
    "CachePhase",
    "Canary",
    "CanaryStep",
    "Condition",
    "ConfigMapKey",
    "Devices",
    "Download",
    "Engine",
    "LLMAdapter",
    "LLMAdapterSpec",
    "LLMAdapterStatus",
    "LLMDeployment",
    "MetricState",
    "MetricStatus",
    "Model",
    "ModelCache",
    "ModelCacheSpec",
    "ModelCacheStatus",
    "NetworkPolicy",
    "Origin",
    "Phase",
    "Resources",
    "RevisionStatus",
    "Rollout",
    "RolloutControl",
    "RolloutStatus",
    "ScaleDown",
    "SecretKey",
    "SecretName",
    "Spec",
    "Status",
    "Targets",
    "Template",
    "TemplateMetadata",
    "WebIdentity",
    "seconds",
    "size_bytes",
]
