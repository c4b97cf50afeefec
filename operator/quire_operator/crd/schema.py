"""From pydantic's JSON schema to the structural schema a CRD may have.

Structural means: no `$ref`, no `title`, no `anyOf` with null, `type` everywhere, and unknown fields are those that no
property names (so kubectl's strict validation refuses them by name). Pure.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = ("title", "$defs", "default", "additionalProperties", "const")


def openapi_schema(model: type[BaseModel]) -> Schema:
    """The `openAPIV3Schema` of the CRD of one kind."""
    raw = model.model_json_schema(by_alias=True)
    schema = _structural(raw, raw["$defs"])
    schema["properties"] = {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        **schema["properties"],
    }
    return schema


def _structural(node: Schema, defs: dict[str, Schema]) -> Schema:
    node = _resolve(node, defs)
    out: Schema = {key: value for key, value in node.items() if key not in _DROPPED}
    if "const" in node:
        out["enum"] = [node["const"]]
    if "x-kubernetes-int-or-string" in out:
        out["anyOf"] = [{"type": "integer"}, {"type": "string"}]
        return out
    if "properties" in node:
        required = set(node.get("required", ()))
        out["properties"] = {
            name: _property(child, defs, required=name in required) for name, child in node["properties"].items()
        }
    if "items" in node:
        out["items"] = _structural(node["items"], defs)
    extra = node.get("additionalProperties")
    if isinstance(extra, dict):
        out["additionalProperties"] = _structural(extra, defs)
    if out.get("type") == "integer":
        out["format"] = "int64" if node.get("maximum", 0) >= 1 << 31 else "int32"
    if out.get("type") == "array" and "x-kubernetes-list-type" not in out:
        out["x-kubernetes-list-type"] = "atomic"
    return _ordered(out)


def _property(node: Schema, defs: dict[str, Schema], *, required: bool) -> Schema:
    out = _structural(node, defs)
    default = node.get("default")
    if default not in (None, [], {}, ""):
        out["default"] = default
    elif "default" not in node and not required and out.get("type") == "object" and _has_defaults(out):
        # An absent object is filled in, so that the defaults inside it hold; one whose default is none stays absent.
        out["default"] = {}
    return _ordered(out)


def _has_defaults(schema: Schema) -> bool:
    """Whether every value the object needs is there by default, and there is at least one."""
    if schema.get("required"):
        return False
    return any("default" in child for child in schema.get("properties", {}).values())


def _resolve(node: Schema, defs: dict[str, Schema]) -> Schema:
    """Follow `$ref` and `anyOf [X, null]`; what stands beside them wins, rules add up."""
    while True:
        if "$ref" in node:
            inner = defs[node["$ref"].rsplit("/", 1)[1]]
            rest = {key: value for key, value in node.items() if key != "$ref"}
        elif "anyOf" in node and any(choice == {"type": "null"} for choice in node["anyOf"]):
            choices = [choice for choice in node["anyOf"] if choice != {"type": "null"}]
            inner = choices[0] if len(choices) == 1 else {"anyOf": choices}
            rest = {key: value for key, value in node.items() if key != "anyOf"}
        else:
            return node
        rules = [*inner.get("x-kubernetes-validations", ()), *rest.get("x-kubernetes-validations", ())]
        node = {**inner, **rest}
        if rules:
            node["x-kubernetes-validations"] = [rule for n, rule in enumerate(rules) if rule not in rules[:n]]


_ORDER = ("description", "type", "format", "default", "enum", "required", "properties", "items")


def _ordered(schema: Schema) -> Schema:
    first = {key: schema[key] for key in _ORDER if key in schema}
    return {**first, **{key: value for key, value in sorted(schema.items()) if key not in first}}
