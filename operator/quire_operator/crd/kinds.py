"""The kinds of the group: types, names, and what `kubectl get` prints. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from quire_operator import labels
from quire_operator.api import LLMAdapter, LLMDeployment, ModelCache

Column = dict[str, Any]


def _column(name: str, path: str, description: str, kind: str = "string", priority: int = 0) -> Column:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority}


def _metric(name: str) -> str:
    return f'.status.autoscaling.metrics[?(@.name=="{name}")].value'


_READY = '.status.conditions[?(@.type=="Ready")].status'
_WHY = '.status.conditions[?(@.type=="Ready")].message'
_AGE = _column("Age", ".metadata.creationTimestamp", "time since creation", kind="date")


@dataclass(frozen=True)
class Kind:
    """`about` is the first paragraph of its reference page, `example` a whole manifest."""

    name: str
    plural: str
    model: type[BaseModel]
    short_names: tuple[str, ...]
    categories: tuple[str, ...]
    columns: tuple[Column, ...]
    about: str
    example: str
    scale: bool = False


KINDS = (
    Kind(
        name=labels.KIND,
        plural=labels.PLURAL,
        model=LLMDeployment,
        short_names=(labels.SHORT_NAME,),
        categories=("all",),
        columns=(
            _column("Ready", _READY, "a completion went through the router"),
            _column("Replicas", ".status.summary", "ready and wanted replicas"),
            _column("Revision", ".status.revisions[0].name", "hash of the wanted pod template"),
            _column("Queue", _metric("queueSize"), "waiting requests per pod"),
            _column("Cache", _metric("gpuCacheUsage"), "share of the KV pool in use per pod"),
            _AGE,
            _column("Phase", ".status.phase", "one word about the state", priority=1),
            _column("Reason", _WHY, "why it is not ready", priority=1),
        ),
        about="A large language model, served behind the router's OpenAI endpoint by one pod or many.",
        example="""spec:
  model:
    source: file:///models/smollm2.gguf
  replicas: 1
""",
        scale=True,
    ),
    Kind(
        name=labels.MODEL_CACHE_KIND,
        plural=labels.MODEL_CACHES,
        model=ModelCache,
        short_names=("mcache",),
        categories=(),
        columns=(
            _column("Ready", _READY, "the claim holds the whole model"),
            _column("Phase", ".status.phase", "one word about the state"),
            _column("Source", ".spec.model.source", "where the model comes from"),
            _column("Size", ".spec.size", "size of the claim"),
            _column("Used by", ".status.usedBy", "LLMDeployments that use it", priority=1),
            _AGE,
            _column("Reason", _WHY, "why it is not ready", priority=1),
        ),
        about=(
            "A model that a Job downloads once into a PersistentVolumeClaim. LLMDeployments of the namespace use it with "
            "`source: cache://NAME`; deleted or evicted, it takes the claim with it when the last pod lets go."
        ),
        example="""spec:
  model:
    source: hf://HuggingFaceTB/SmolLM2-135M-Instruct
  size: 2Gi
""",
    ),
    Kind(
        name=labels.ADAPTER_KIND,
        plural=labels.ADAPTERS,
        model=LLMAdapter,
        short_names=("llma",),
        categories=(),
        columns=(
            _column("Ready", _READY, "every ready pod has it"),
            _column("Loaded", ".status.summary", "ready pods that have it"),
            _column("Deployment", ".spec.deployment", "whose pods load it"),
            _column("Source", ".spec.source", "where it comes from", priority=1),
            _AGE,
            _column("Reason", _WHY, "why it is not ready", priority=1),
        ),
        about=(
            "A LoRA adapter that every ready pod of an LLMDeployment has loaded; new pods get it too, and no pod is replaced. "
            "Engines of this version have no adapters yet: every pod then says `NotSupported`, and nothing else is disturbed."
        ),
        example="""spec:
  deployment: smollm2
  source: file:///mnt/adapters/support
""",
    ),
)
