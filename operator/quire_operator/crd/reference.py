"""The field reference `docs/llmdeployment.md`, from the same schema the CRD has. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quire_operator import labels
from quire_operator.crd.schema import openapi_schema

FILE_NAME = "llmdeployment.md"

_INTRO = f"""<!-- Generated from quire_operator.api by `make manifests`; edits here are lost. -->
# LLMDeployment ({labels.API_VERSION})

Short name `{labels.SHORT_NAME}`. What happens behind it: [operator.md](operator.md). The same text in the cluster: `kubectl explain {labels.SHORT_NAME}.spec`.

```yaml
apiVersion: {labels.API_VERSION}
kind: {labels.KIND}
metadata:
  name: smollm2
spec:
  model:
    source: file:///models/smollm2.gguf
  replicas: 1
```
"""


def reference() -> str:
    """The file as it is committed."""
    schema = openapi_schema()
    parts = [_INTRO]
    for section in ("spec", "status"):
        parts.append(f"\n## {section}\n\n| field | type | meaning |\n|---|---|---|\n")
        parts.extend(_rows(section, schema["properties"][section]))
    parts.append("\n## Rules\n\nRefused by `kubectl apply`, with the sentence:\n\n")
    parts.extend(_rule_lines("", schema))
    return "".join(parts)


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
