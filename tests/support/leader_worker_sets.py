"""The definition of LeaderWorkerSet as far as the operator uses it: its own fields, and pods as they come.

`QUIRE_TEST_DEFINITIONS` names a folder with a `leaderworkersets.yaml`, the real one, for who has it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

_POD = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_SPEC = {
    "type": "object",
    "required": ["leaderWorkerTemplate"],
    "properties": {
        "replicas": {"type": "integer", "format": "int32", "default": 1},
        "startupPolicy": {"type": "string", "enum": ["LeaderCreated", "LeaderReady"]},
        "networkConfig": {
            "type": "object",
            "required": ["subdomainPolicy"],
            "properties": {"subdomainPolicy": {"type": "string", "enum": ["Shared", "UniquePerReplica"]}},
        },
        "leaderWorkerTemplate": {
            "type": "object",
            "required": ["workerTemplate"],
            "properties": {
                "size": {"type": "integer", "format": "int32", "default": 1},
                "restartPolicy": {"type": "string", "enum": ["RecreateGroupOnPodRestart", "None"]},
                "leaderTemplate": _POD,
                "workerTemplate": _POD,
            },
        },
    },
}


def definition() -> dict[str, Any]:
    """The CustomResourceDefinition."""
    folder = os.environ.get("QUIRE_TEST_DEFINITIONS")
    if folder:
        found: dict[str, Any] = yaml.safe_load((Path(folder) / "leaderworkersets.yaml").read_text())
        return found
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": _SPEC, "status": _POD}}},
        "subresources": {"status": {}},
    }
    names = {"kind": "LeaderWorkerSet", "plural": "leaderworkersets", "singular": "leaderworkerset"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "leaderworkersets.leaderworkerset.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/lws"},
        },
        "spec": {
            "group": "leaderworkerset.x-k8s.io",
            "scope": "Namespaced",
            "names": {**names, "listKind": "LeaderWorkerSetList"},
            "versions": [version],
        },
    }
