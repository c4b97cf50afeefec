"""The API types of quire.dev/v1alpha1: the only place where a field of the LLMDeployment is written.

The CRD's schema, its CEL rules and the field reference in docs/ are generated from these models by
`python -m quire_operator.crd`. A leaf of the package: no I/O, no Kubernetes client, no settings.
"""

from quire_operator.api.base import seconds
from quire_operator.api.engine import OPERATOR_OWNED_FLAGS, Engine
from quire_operator.api.llmdeployment import NAME_MAX, LLMDeployment, Spec
from quire_operator.api.model import Model, SecretKey
from quire_operator.api.pods import Resources, Template, TemplateMetadata
from quire_operator.api.rollout import Rollout
from quire_operator.api.scaling import Autoscaling, ScaleDown, Targets
from quire_operator.api.status import (
    AutoscalingStatus,
    Condition,
    MetricState,
    MetricStatus,
    Phase,
    RevisionStatus,
    RolloutStatus,
    Status,
)

__all__ = [
    "NAME_MAX",
    "OPERATOR_OWNED_FLAGS",
    "Autoscaling",
    "AutoscalingStatus",
    "Condition",
    "Engine",
    "LLMDeployment",
    "MetricState",
    "MetricStatus",
    "Model",
    "Phase",
    "Resources",
    "RevisionStatus",
    "Rollout",
    "RolloutStatus",
    "ScaleDown",
    "SecretKey",
    "Spec",
    "Status",
    "Targets",
    "Template",
    "TemplateMetadata",
    "seconds",
]
