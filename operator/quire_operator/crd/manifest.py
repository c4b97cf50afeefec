"""The CustomResourceDefinition around the schema: names, columns, subresources. Pure."""

from __future__ import annotations

from typing import Any

import yaml

from quire_operator.crd.kinds import KINDS, Kind
from quire_operator.crd.schema import openapi_schema
from quire_operator.labels import GROUP, VERSION

_HEADER = "# Generated from quire_operator.api by `make manifests`; edits here are lost.\n"


def file_name(kind: Kind) -> str:
    """`llmdeployments.quire.dev.yaml`."""
    return f"{kind.plural}.{GROUP}.yaml"


def custom_resource_definition(kind: Kind = KINDS[0]) -> dict[str, Any]:
    """The whole object."""
    subresources: dict[str, Any] = {"status": {}}
    if kind.scale:
        subresources["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{GROUP}",
            "annotations": {"helm.sh/resource-policy": "keep"},
            "labels": {"app.kubernetes.io/name": "quire", "app.kubernetes.io/part-of": "quire"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind.name,
                "listKind": f"{kind.name}List",
                "plural": kind.plural,
                "singular": kind.name.lower(),
                "shortNames": list(kind.short_names),
                "categories": list(kind.categories),
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": list(kind.columns),
                    "schema": {"openAPIV3Schema": openapi_schema(kind.model)},
                    "subresources": subresources,
                }
            ],
        },
    }


def crd_yaml(kind: Kind) -> str:
    """The file as it is committed."""
    return _HEADER + yaml.dump(custom_resource_definition(kind), Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Without anchors: the chart and reviewers read this file."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
