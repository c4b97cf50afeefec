"""Names on both sides: metrics, labels, paths, ports; and each field of the CRD has a reader."""

from __future__ import annotations

import re
import signal
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from quire.engine.client import _cause_of_death
from quire.metrics import EngineMetrics
from quire.request import EngineReady, StepStats
from quire_operator import labels
from quire_operator.api import (
    AdapterStatus,
    Engine,
    LLMAdapterSpec,
    LLMAdapterStatus,
    ModelCacheSpec,
    ModelCacheStatus,
    Spec,
    Status,
)
from quire_operator.resources.hpa import METRIC_NAMES
from quire_operator.status.problems import ENGINE_KILLED

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator" / "quire_operator"
ROUTER = ROOT / "operator" / "quire_router"


def sources(folder: Path, *, without: tuple[str, ...] = ()) -> str:
    inside = {path: path.relative_to(folder).parts for path in sorted(folder.rglob("*.py"))}
    files = [path for path, parts in inside.items() if not any(part in parts for part in without)]
    return "\n".join(path.read_text() for path in files)


def models(root: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """`root` and every model below it."""
    yield root
    for field in root.model_fields.values():
        for part in parts(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel):
                yield from models(part)


def parts(annotation: typing.Any) -> Iterator[typing.Any]:
    yield annotation
    for inner in typing.get_args(annotation):
        yield from parts(inner)


SPEC_FIELDS = sorted(
    {
        (model.__name__, name)
        for root in (Spec, ModelCacheSpec, LLMAdapterSpec)
        for model in models(root)
        if model is not Engine
        for name in model.model_fields
    }
)
STATUS_FIELDS = sorted(
    {
        (model.__name__, name)
        for root in (Status, ModelCacheStatus, LLMAdapterStatus)
        for model in models(root)
        for name in model.model_fields
    }
)


@pytest.mark.parametrize(("model", "field"), SPEC_FIELDS)
def test_each_field_of_the_spec_is_read_by_somebody(model: str, field: str) -> None:
    # Engine's fields are read as a whole, flag by flag: see test_contract_engine_flags.
    if (model, field) == ("Template", "spec"):
        assert "patch.spec" in sources(OPERATOR, without=("api", "crd"))
        return
    code = sources(OPERATOR, without=("crd",))
    generic = "getattr(scaling.targets, field)" in code and model == "Targets" and field in METRIC_NAMES
    assert generic or re.search(rf"\.{field}\b(?!\s*=[^=])", code), f"{model}.{field} has no reader"


@pytest.mark.parametrize(("model", "field"), STATUS_FIELDS)
def test_each_field_of_the_status_is_written_by_somebody(model: str, field: str) -> None:
    code = sources(OPERATOR / "status") + sources(OPERATOR / "controllers")
    assert re.search(rf'\b{field}=|"{field}":', code), f"{model}.{field} is never written"


def test_each_metric_the_operator_reads_is_exported_by_the_engine_from_the_start() -> None:
    metrics = EngineMetrics("m")
    ready = EngineReady(max_model_len=8, num_blocks=2, block_size=16, vocab_size=10, info={}, startup_s={})
    metrics.ready(ready, {})
    page = metrics.exposition("")[0].decode()
    for metric in METRIC_NAMES.values():
        assert re.search(rf'^{metric}{{model_name="m"}} 0\.0$', page, re.MULTILINE), (
            f"an idle engine does not export {metric}"
        )


def test_who_may_go_to_zero_and_who_asked_is_the_same_on_both_sides() -> None:
    from prometheus_client import generate_latest

    from quire_operator.probe.routers import Asked, read_page
    from quire_operator.probe.samples import IN_FLIGHT, SERVED
    from quire_operator.spec import Key
    from quire_router.metrics import Metrics
    from quire_router.registry import Registry

    spec = Spec.model_validate(
        {
            "model": {"source": "file:///m"},
            "autoscaling": {"minReplicas": 0, "maxReplicas": 2, "targets": {"queueSize": "4"}},
        }
    )
    registry = Registry()
    metadata = {"name": "smol", "namespace": "demo"}
    registry.apply_deployment({"metadata": metadata, "spec": spec.model_dump(by_alias=True)})
    route = registry.resolve("demo/smol")
    assert route is not None and route.deployment.from_zero
    router = Metrics(registry.count_endpoints, lambda key: 2)
    assert read_page(generate_latest(router.registry).decode()) == {Key("demo", "smol"): Asked(0, 2)}, "from the start"
    router.came(("demo", "smol"))
    assert read_page(generate_latest(router.registry).decode()) == {Key("demo", "smol"): Asked(1, 2)}

    engine = EngineMetrics("m")
    engine.ready(EngineReady(max_model_len=8, num_blocks=2, block_size=16, vocab_size=10, info={}, startup_s={}), {})
    page = engine.exposition("")[0].decode()
    assert all(re.search(rf"^{metric}{{.*}} 0\.0$", page, re.MULTILINE) for metric in (*IN_FLIGHT, SERVED))


def test_the_router_finds_endpoints_by_the_label_the_operator_sets() -> None:
    from quire_router.endpoints import DEPLOYMENT_LABEL

    assert DEPLOYMENT_LABEL == labels.DEPLOYMENT
    code = sources(ROUTER)
    assert f"apis/{labels.API_VERSION}" in code and f'"{labels.PLURAL}"' in code


def test_the_router_reads_the_names_of_adapters_where_the_api_has_them() -> None:
    from quire_router.kube import LLMADAPTERS
    from quire_router.registry import parse_adapter, parse_deployment

    source = "hf://org/lora"
    spec = Spec.model_validate({"model": {"source": "file:///m"}, "adapters": [{"name": "legal", "source": source}]})
    status = Status(adapters=(AdapterStatus(name="legal", loaded=1, of=2),))
    metadata = {"name": "smol", "namespace": "demo"}
    manifest = {
        "metadata": metadata,
        "spec": spec.model_dump(by_alias=True),
        "status": status.model_dump(by_alias=True),
    }
    deployment = parse_deployment(manifest)
    assert deployment is not None and (deployment.adapters, deployment.loaded) == (("legal",), (("legal", 1),))
    one = LLMAdapterSpec(deployment="smol", source=source, served_name="support")
    adapter = parse_adapter({"metadata": {**metadata, "name": "x"}, "spec": one.model_dump(by_alias=True)})
    assert adapter is not None and (adapter.deployment, adapter.served_name) == (("demo", "smol"), "support")
    assert (LLMADAPTERS.api, LLMADAPTERS.plural) == (f"apis/{labels.API_VERSION}", labels.ADAPTERS)


@pytest.mark.parametrize("path", [labels.PATH_LIVE, labels.PATH_READY, labels.PATH_METRICS])
def test_the_engine_serves_the_paths_the_pods_are_probed_at(path: str) -> None:
    assert f'@routes.get("{path}")' in sources(ROOT / "runtime" / "quire" / "server")


def test_the_operator_knows_the_servers_last_line_when_its_engine_was_killed() -> None:
    assert ENGINE_KILLED in _cause_of_death(-signal.SIGKILL)


def test_contract_labels_are_written_in_one_place() -> None:
    code = sources(OPERATOR, without=("api", "crd"))
    for name in ("DEPLOYMENT", "REVISION", "TRACK", "ROLE"):
        literal = f'"{getattr(labels, name)}"'
        assert code.count(literal) == 1, f"{literal} belongs into labels.py only"


def test_the_page_lists_every_metric_of_the_engine_and_no_other() -> None:
    table = (ROOT / "docs" / "server.md").read_text().split("## Metrics")[1].split("\n| metric |")[1]
    listed = {
        name for row in table.splitlines() for name in re.findall(r"`([a-z_]+)(?:\{[^`]*\})?`", row.split("|")[1])
    }
    metrics = EngineMetrics("m")
    metrics.ready(EngineReady(max_model_len=8, num_blocks=2, block_size=16, vocab_size=10, info={}, startup_s={}), {})
    metrics.step(StepStats(**dict.fromkeys(StepStats.__struct_fields__, 1) | {"grammars": None}))
    exported = {
        family.name.removeprefix("quire_") + ("_total" if family.type == "counter" else "")
        for family in metrics.registry.collect()
    }
    assert listed == exported
