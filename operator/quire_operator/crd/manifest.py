"""The CustomResourceDefinition around the schema: names, columns, subresources. Pure."""

from __future__ import annotations

from typing import Any

import yaml

from quire_operator import labels
from quire_operator.crd.schema import openapi_schema

FILE_NAME = f"{labels.PLURAL}.{labels.GROUP}.yaml"

_HEADER = "# Generated from quire_operator.api by `make manifests`; edits here are lost.\n"


def _column(name: str, path: str, description: str, kind: str = "string", priority: int = 0) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "description": description, "priority": priority}


def _metric(name: str) -> str:
    return f'.status.autoscaling.metrics[?(@.name=="{name}")].value'


COLUMNS = (
    _column("Ready", '.status.conditions[?(@.type=="Ready")].status', "a completion went through the router"),
    _column("Replicas", ".status.summary", "ready and wanted replicas"),
    _column("Revision", ".status.revisions[0].name", "hash of the wanted pod template"),
    _column("Queue", _metric("queueSize"), "waiting requests per pod"),
    _column("Cache", _metric("gpuCacheUsage"), "share of the KV pool in use per pod"),
    _column("Age", ".metadata.creationTimestamp", "time since creation", kind="date"),
    _column("Phase", ".status.phase", "one word about the state", priority=1),
    _column("Reason", '.status.conditions[?(@.type=="Ready")].message', "why it is not ready", priority=1),
)


def custom_resource_definition() -> dict[str, Any]:
    """The whole object."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{labels.PLURAL}.{labels.GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "quire", "app.kubernetes.io/part-of": "quire"},
        },
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": labels.KIND,
                "listKind": f"{labels.KIND}List",
                "plural": labels.PLURAL,
                "singular": labels.SINGULAR,
                "shortNames": [labels.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": labels.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(COLUMNS),
                    "schema": {"openAPIV3Schema": openapi_schema()},
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The file as it is committed."""
    return _HEADER + yaml.dump(custom_resource_definition(), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Without anchors: the chart and reviewers read this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
