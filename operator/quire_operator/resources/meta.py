"""Metadata every child shares: name, labels, owner reference. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from quire_operator import labels
from quire_operator.spec import Deployment


def child_metadata(
    owner: Deployment,
    name: str,
    extra_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Owner references only, no finalizer: deleting the LLMDeployment deletes its children, with or without the operator."""
    return {
        **({"annotations": dict(annotations)} if annotations else {}),
        "name": name,
        "namespace": owner.namespace,
        "labels": {**labels.child_labels(owner.name), **(extra_labels or {})},
        "ownerReferences": [
            {
                "apiVersion": labels.API_VERSION,
                "kind": labels.KIND,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def bounded(name: str, most: int) -> str:
    """`name` itself while it has at most `most` characters; else its beginning, and a hash of the whole in place of the rest."""
    if len(name) <= most:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: most - len(digest) - 1].rstrip('-')}-{digest}"
