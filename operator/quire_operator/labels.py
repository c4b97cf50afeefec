"""Every name that other programs see: labels, annotations, ports, container and field manager.

The router, the chart and the dashboards read these; they are written here and nowhere else in the operator
(`tests/contract` compares them with the other side). No logic but the two functions that put them together.
"""

from __future__ import annotations

from collections.abc import Mapping

GROUP = "quire.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "LLMDeployment"
PLURAL = "llmdeployments"
SINGULAR = "llmdeployment"
SHORT_NAME = "llmd"

MODEL_CACHE_KIND = "ModelCache"
MODEL_CACHES = "modelcaches"
ADAPTER_KIND = "LLMAdapter"
ADAPTERS = "llmadapters"

DEPLOYMENT = "quire.dev/deployment"
REVISION = "quire.dev/revision"
TRACK = "quire.dev/track"
ROLE = "quire.dev/role"

MODEL_CACHE = "quire.dev/modelcache"
"""On the claim, the Job and the pod that fill a ModelCache."""

STABLE = "stable"
CANDIDATE = "candidate"
LEADER = "leader"
WORKER = "worker"

UNIT = "quire.dev/unit"
"""On workers and their StatefulSets: index of the unit of pods (one replica over several nodes) that they belong to."""
UNIT_PODS = "quire.dev/unit-pods"
"""On the headless Service that gives the pods of units their names, with the name of the LLMDeployment. Not DEPLOYMENT: the router follows that."""
UNIT_SIZE = "quire.dev/unit-size"
"""Annotation on the StatefulSet of leaders: pods of each unit."""
UNIT_SIZE_VARIABLE = "LWS_GROUP_SIZE"
"""The same for the engine, under the name that LeaderWorkerSets have for it."""
UNIT_STATE = "quire.dev/unit-state"
"""Annotation on the StatefulSet of a unit's workers: which pods are one unit, and how often it began anew (`policy.units`)."""
UNIT_READY = "quire.dev/unit-ready"
"""Condition and readiness gate of leaders: all workers are ready too."""

LWS_GROUP = "leaderworkerset.x-k8s.io"
LWS_UNIT = "leaderworkerset.sigs.k8s.io/group-index"
"""Label that the LeaderWorkerSet controller gives to its pods."""

APPLIED_HASH = "quire.dev/applied-hash"
"""Annotation on children: hash of what the operator last applied, so that an unchanged child costs no write."""

INTENT_HASH = "quire.dev/spec-hash"
"""Annotation on workloads: hash of what the user said about these pods, whatever an operator makes of it."""
MODEL = "quire.dev/model"
"""Annotation on workloads: spec.model.source of their pods."""
ROLLOUT = "quire.dev/rollout"
"""Annotation on LLMDeployments: a command of the user; removed once carried out."""

STATEFUL_SET_NAME_MAX = 52
"""Its pods carry a label made of its name and up to 11 characters (`controller-revision-hash`), which may have 63: of a longer one no pod is made."""

FIELD_MANAGER = "quire-operator"
CONTAINER = "engine"
PORT_NAME = "http"
ENGINE_PORT = 8000
SERVICE_PORT = 80

PATH_READY = "/health/ready"
PATH_LIVE = "/health/live"
PATH_METRICS = "/metrics"

CONTRACT_PREFIXES = ("quire.dev/", "app.kubernetes.io/")


def child_labels(name: str) -> dict[str, str]:
    """Labels of every child of the LLMDeployment `name`."""
    return {
        DEPLOYMENT: name,
        "app.kubernetes.io/name": "quire-runtime",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": FIELD_MANAGER,
        "app.kubernetes.io/part-of": "quire",
    }


def cache_claim(model_cache: str) -> str:
    """Claim of the ModelCache of that name; LLMDeployments mount it without asking for the ModelCache."""
    return f"{model_cache}-modelcache"


def unit_service(name: str) -> str:
    """The headless Service of the LLMDeployment `name`, where its replicas are units of pods."""
    return f"{name}-units"


def selector_text(labels: Mapping[str, str]) -> str:
    """`a=b,c=d`, as the API server's labelSelector parameter and `status.selector` want it."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def leader_selector(name: str) -> dict[str, str]:
    """Selects the pods that answer for `name`, of every revision and track."""
    return {DEPLOYMENT: name, ROLE: LEADER}


def stable_selector(name: str) -> dict[str, str]:
    """Selects the pods an autoscaler counts: the leaders of the stable track."""
    return {DEPLOYMENT: name, ROLE: LEADER, TRACK: STABLE}
