"""The field reference `docs/llmdeployment.md`, from the same schemas the CRDs have. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire_operator.crd.kinds import KINDS, Kind
from quire_operator.crd.schema import openapi_schema
from quire_operator.labels import API_VERSION

FILE_NAME = "llmdeployment.md"

_HEADER = "<!-- Generated from quire_operator.api by `make manifests`; edits here are lost. -->\n"
_CHANGES = """
## Versions

`v1alpha1` is served and stored. Within it fields are added, bounds are widened and defaults of new fields are chosen so that a
stored object means what it meant; nothing is renamed, removed or narrowed. What cannot be done so waits for `v1alpha2`, which
will be served beside `v1alpha1` and converted both ways by the operator, stored once no release that reads only the old one is supported.
"""


def reference() -> str:
    """The file as it is committed: all kinds on one page."""
    return _HEADER + "".join(part for kind in KINDS for part in _page(kind)) + _CHANGES


def _page(kind: Kind) -> Iterator[str]:
    schema, short = openapi_schema(kind.model), kind.short_names[0]
    yield f"{chr(10) if kind is not KINDS[0] else ''}# {kind.name} ({API_VERSION})\n\n{kind.about}\n\n"
    yield f"Short name `{short}`. What happens behind it: [operator.md](operator.md). The same text in the cluster: "
    yield f"`kubectl explain {short}.spec`.\n\n"
    yield f"```yaml\napiVersion: {API_VERSION}\nkind: {kind.name}\nmetadata:\n  name: smollm2\n{kind.example}```\n"
    for section in ("spec", "status"):
        yield f"\n## {kind.name}: {section}\n\n| field | type | meaning |\n|---|---|---|\n"
        yield from _rows(section, schema["properties"][section])
    yield f"\n## {kind.name}: rules\n\nRefused by `kubectl apply`, with the sentence:\n\n"
    yield from _rule_lines("", schema)


def _rows(path: str, schema: dict[str, Any]) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}"
        mark = " (required)" if name in required else ""
        yield f"| `{where}`{mark} | {_type(child)} | {child.get('description', '').replace('|', '&#124;')} |\n"
        inner = child.get("items", child)
        yield from _rows(where + ("[]" if "items" in child else ""), inner)


def _type(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " &#124; ".join(f"`{choice}`" for choice in schema["enum"])
    if "x-kubernetes-int-or-string" in schema:
        return "quantity"
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties'])}"
    bounds = [str(schema[key]) for key in ("minimum", "maximum") if key in schema]
    return str(schema["type"]) + (f" {' to '.join(bounds)}" if len(bounds) == 2 else "")


def _rule_lines(path: str, schema: dict[str, Any]) -> Iterator[str]:
    for each in schema.get("x-kubernetes-validations", ()):
        yield f"- `{path or 'metadata.name'}`: {each['message']}\n"
    for name, child in schema.get("properties", {}).items():
        where = f"{path}.{name}" if path else name
        yield from _rule_lines(where, child)
        if "items" in child:
            yield from _rule_lines(f"{where}[]", child["items"])
