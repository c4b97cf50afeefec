"""The revision: a hash of the whole rendered pod template, so any change that matters rolls and none that does not. Pure.

A workload also carries the hash of what the user said about its pods. While that is the same, the workload stands as it is,
so that a newer operator that would render it otherwise (another default image, another probe) restarts nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from quire_operator.observation import WorkloadView
from quire_operator.spec import Deployment

LENGTH = 8

_NOT_OF_PODS = frozenset({"adapters", "replicas", "autoscaling", "rollout", "networkPolicy"})
_NOTHING: tuple[object, ...] = (None, {}, [], "")


def revision_of(template: Mapping[str, Any]) -> str:
    """Eight hexadecimal digits; independent of the order of keys, dependent on the order of lists."""
    return _digest(template)


def intent_of(owner: Deployment) -> str:
    """Hash of the fields of the spec that shape pods, as far as they differ from their defaults.

    A field that a later release adds is left out while it has its default, so the hash is the same before and after.
    """
    spec = owner.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    wanted = {key: value for key, value in spec.items() if key not in _NOT_OF_PODS}
    drain = spec.get("rollout", {}).get("drainTimeout")
    return _digest(_pruned({**wanted, "drainTimeout": drain}))


def standing_revision(rendered: str, intent: str, workloads: Sequence[WorkloadView]) -> str:
    """The revision that is wanted: the one as rendered now, or the one that was made from the same intent before."""
    if any(workload.revision == rendered for workload in workloads):
        return rendered
    same = [workload for workload in workloads if workload.intent == intent]
    newest = max(same, key=lambda workload: (workload.desired > 0, workload.created, workload.name), default=None)
    return newest.revision if newest is not None else rendered


def _pruned(value: Any) -> Any:
    """Without what says nothing: an empty map and an absent one mean the same."""
    if not isinstance(value, dict):
        return value
    out = {key: _pruned(inner) for key, inner in value.items()}
    return {key: inner for key, inner in out.items() if inner not in _NOTHING}


def _digest(value: Mapping[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]
