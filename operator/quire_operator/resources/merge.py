"""Strategic merge of a pod patch, as kubectl does it for pods: maps merge, lists of named things merge by their key.

Directives: a null value deletes the key; `$patch: delete` in an element of a keyed list removes that element;
`$patch: replace` in a map replaces the map. Pure: arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "resourceClaims": "name",
}
"""Patch merge keys of the pod API; every other list is replaced as a whole."""

_PATCH = "$patch"


def merge(base: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `patch` laid over it."""
    if patch.get(_PATCH) == "replace":
        return {key: value for key, value in patch.items() if key != _PATCH}
    out = dict(base)
    for key, value in patch.items():
        if value is None:
            out.pop(key, None)
        elif isinstance(value, Mapping):
            old = out.get(key)
            out[key] = merge(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and key in MERGE_KEYS and _keyed(value, MERGE_KEYS[key]):
            out[key] = _merge_list(out.get(key) or [], value, MERGE_KEYS[key])
        else:
            out[key] = value
    return out


def _keyed(items: Sequence[Any], key: str) -> bool:
    return all(isinstance(item, Mapping) and key in item for item in items)


def _merge_list(
    base: Sequence[Mapping[str, Any]], patch: Sequence[Mapping[str, Any]], key: str
) -> list[dict[str, Any]]:
    out: dict[Any, dict[str, Any]] = {item[key]: dict(item) for item in base}
    for item in patch:
        name = item[key]
        if item.get(_PATCH) == "delete":
            out.pop(name, None)
        else:
            out[name] = merge(out.get(name, {}), item)
    return list(out.values())
