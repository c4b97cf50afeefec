"""The CRD: structural, complete, and the committed copies are fresh. The rules themselves run on a real API server in e2e."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from quire_operator.api import LLMDeployment, Spec, seconds
from quire_operator.crd.__main__ import outputs
from quire_operator.crd.kinds import KINDS
from quire_operator.crd.manifest import custom_resource_definition, file_name
from quire_operator.crd.schema import openapi_schema

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS = {kind.name: openapi_schema(kind.model) for kind in KINDS}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}")
    for word in ("items", "additionalProperties"):
        if word in schema:
            yield from nodes(schema[word], f"{path}[]")


@pytest.mark.parametrize("path", sorted(outputs()))
def test_committed_files_are_fresh(path: str) -> None:
    assert (ROOT / path).read_text() == outputs()[path], "run `make manifests`"


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_schema_is_structural(kind: str) -> None:
    for path, node in nodes(SCHEMAS[kind]):
        assert "$ref" not in node and "title" not in node and "$defs" not in node, path
        assert "type" in node or "x-kubernetes-int-or-string" in node, path
        if "properties" in node:
            assert "additionalProperties" not in node, path


def test_only_what_is_kubernetes_own_takes_what_it_does_not_know() -> None:
    open_ended = [
        path
        for schema in SCHEMAS.values()
        for path, node in nodes(schema)
        if node.get("x-kubernetes-preserve-unknown-fields")
    ]
    assert open_ended == [".spec.networkPolicy.allowFrom[]", ".spec.template.spec"]


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_field_is_described_and_every_string_bounded(kind: str) -> None:
    for path, node in nodes(SCHEMAS[kind]["properties"]["spec"], "spec"):
        if not path.endswith("[]"):
            assert node.get("description", "").endswith("."), path
        if (
            node.get("type") == "string"
            and "enum" not in node
            and not path.endswith(("labels[]", "annotations[]", "extraArgs[]"))
        ):
            assert "maxLength" in node, path
        if node.get("type") == "integer":
            assert "minimum" in node and "maximum" in node, path
        if node.get("type") == "array":
            assert "maxItems" in node, path


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_optional_field_tells_its_default(kind: str) -> None:
    for path, node in nodes(SCHEMAS[kind]["properties"]["spec"], "spec"):
        required = set(node.get("required", ()))
        for name, child in node.get("properties", {}).items():
            if name not in required and child["type"] != "object" and "default" not in child:
                text = child["description"]
                assert "Default" in text or name in ("aliases", "tokenSecretRef"), f"{path}.{name}"


def test_rules_are_sentences() -> None:
    rules = [
        rule
        for schema in SCHEMAS.values()
        for _, node in nodes(schema)
        for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(rules) > 40
    for rule in rules:
        assert len(rule["message"].split()) >= 5, rule


def test_subresources_and_columns() -> None:
    (version,) = custom_resource_definition()["spec"]["versions"]
    assert version["subresources"]["scale"]["labelSelectorPath"] == ".status.selector"
    columns = [column["name"].upper() for column in version["additionalPrinterColumns"] if column["priority"] == 0]
    assert columns == ["READY", "REPLICAS", "REVISION", "QUEUE", "CACHE", "AGE"]
    names = custom_resource_definition()["spec"]["names"]
    assert names["shortNames"] == ["llmd"] and names["categories"] == ["all"]


def test_the_chart_copy_is_the_same_file() -> None:
    for kind in KINDS:
        for folder in ("crds", "charts/quire/files/crds"):
            crd = yaml.safe_load((ROOT / folder / file_name(kind)).read_text())
            assert crd == custom_resource_definition(kind)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"model": {"source": "s3://x"}}, "model.source"),
        ({"model": {"source": "file:///a/../b"}}, "model.source"),
        ({"engine": {"maxNumSeqs": 0}}, "engine.maxNumSeqs"),
        ({"engine": {"gpuMemoryUtilization": "1.5"}}, "engine.gpuMemoryUtilization"),
        ({"engine": {"queueTimeout": "5 minutes"}}, "engine.queueTimeout"),
        ({"engine": {"nope": 1}}, "engine.nope"),
        ({"autoscaling": {"maxReplicas": 2, "targets": {"gpuCacheUsage": "80"}}}, "autoscaling.targets.gpuCacheUsage"),
        ({"autoscaling": {"minReplicas": -1, "maxReplicas": 2, "targets": {}}}, "autoscaling.minReplicas"),
    ],
)
def test_python_refuses_what_the_schema_refuses(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Spec.model_validate({"model": {"source": "hf://a/b"}, **spec})
    assert field in [".".join(str(part) for part in error["loc"]) for error in caught.value.errors()]


@pytest.mark.parametrize(("text", "value"), [("30s", 30), ("10m", 600), ("1h30m", 5400), ("1h1m1s", 3661), ("0s", 0)])
def test_durations(text: str, value: int) -> None:
    assert seconds(text) == value


def test_types_are_frozen() -> None:
    made = LLMDeployment.model_validate({"spec": {"model": {"source": "hf://a/b"}}})
    with pytest.raises(ValidationError):
        made.spec.model.source = "hf://c/d"
