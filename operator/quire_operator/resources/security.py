"""The restricted Pod Security Standard, for every pod and container that is built here. Pure."""

from __future__ import annotations

from typing import Any

USER = 65532


def pod_security() -> dict[str, Any]:
    """Of the pod."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Of each container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
