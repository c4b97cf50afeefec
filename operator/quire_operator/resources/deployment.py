"""The Deployment of one revision. Its template never changes: another template is another revision. Pure."""

from __future__ import annotations

from typing import Any

from quire_operator import labels
from quire_operator.resources.deadlines import progress_s
from quire_operator.resources.meta import child_metadata
from quire_operator.spec import Deployment


def workload_name(owner_name: str, revision: str) -> str:
    """`<name>-<revision>`."""
    return f"{owner_name}-{revision}"


def build_deployment(
    owner: Deployment, revision: str, template: dict[str, Any], replicas: int, *, intent: str = ""
) -> dict[str, Any]:
    """`template` is `build_pod_template`'s; revision and track are added to its labels here. `intent` is `intent_of`'s hash.

    The track of pods is always `stable`: whether a revision is one changes, and a changed template would roll its pods.
    """
    selector = {**labels.leader_selector(owner.name), labels.REVISION: revision}
    marks = {labels.REVISION: revision, labels.TRACK: labels.STABLE}
    metadata = template["metadata"]
    notes = {labels.INTENT_HASH: intent, labels.MODEL: owner.spec.model.source} if intent else {}
    name = workload_name(owner.name, revision)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": child_metadata(owner, name, {**marks, labels.ROLE: labels.LEADER}, notes),
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": 0,
            "progressDeadlineSeconds": progress_s(owner.spec),
            "selector": {"matchLabels": selector},
            "template": {**template, "metadata": {**metadata, "labels": {**metadata["labels"], **marks}}},
        },
    }
