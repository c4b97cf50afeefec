"""What the chart installs for Prometheus and Grafana, when it is asked to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from helm_kit import CHART, NAMESPACE, Object, render
from quire_operator import labels

# Helm is built where it is not in the cache yet.
pytestmark = pytest.mark.timeout(3600)

KINDS = {"dashboard": "ConfigMap", "rules": "PrometheusRule", "podMonitor": "PodMonitor"}


def rendered(part: str, values: Object | None = None, **others: Any) -> list[Object]:
    """The objects of one part, which alone is on."""
    objects = render({"metrics": {part: {"enabled": True, **(values or {})}}, **others})
    return [item for item in objects if item["kind"] == KINDS[part]]


def test_nothing_of_it_is_installed_unasked() -> None:
    assert not {item["kind"] for item in render()} & set(KINDS.values())


@pytest.mark.parametrize("part", KINDS)
def test_each_part_is_turned_on_alone(part: str) -> None:
    kinds = {item["kind"] for item in render({"metrics": {part: {"enabled": True}}})} & set(KINDS.values())
    assert kinds == {KINDS[part]}
    for item in rendered(part):
        assert item["metadata"]["namespace"] == NAMESPACE
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


def test_the_dashboard_is_the_file_under_the_label_of_the_sidecar() -> None:
    [config] = rendered("dashboard")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: json.loads(path.read_text()) for path in (CHART / "files" / "dashboards").glob("*.json")}
    assert files
    assert {name: json.loads(text) for name, text in config["data"].items()} == files
    [other] = rendered("dashboard", {"label": "dashboards", "annotations": {"grafana_folder": "Quire"}})
    assert other["metadata"]["labels"]["dashboards"] == "1"
    assert "grafana_dashboard" not in other["metadata"]["labels"]
    assert other["metadata"]["annotations"] == {"grafana_folder": "Quire"}


@pytest.mark.parametrize("part", ["rules", "podMonitor"])
def test_a_prometheus_finds_its_objects_by_labels(part: str) -> None:
    for item in rendered(part, {"labels": {"release": "kube-prometheus-stack"}}):
        assert item["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def test_engines_are_scraped_where_their_deployments_may_be() -> None:
    def engines(**others: Any) -> Object:
        [found] = [item for item in rendered("podMonitor", **others) if item["metadata"]["name"] == "quire-engine"]
        spec: Object = found["spec"]
        return spec

    assert engines()["namespaceSelector"] == {"any": True}
    assert engines(watchNamespaces=["a", "b"])["namespaceSelector"] == {"matchNames": ["a", "b"]}
    assert engines()["selector"] == {"matchExpressions": [{"key": labels.DEPLOYMENT, "operator": "Exists"}]}
    [endpoint] = engines()["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["path"]) == (labels.PORT_NAME, labels.PATH_METRICS)
    assert set(engines()["podTargetLabels"]) == {labels.DEPLOYMENT, labels.REVISION}


def test_operator_and_router_are_scraped_at_ports_they_have() -> None:
    objects = render({"metrics": {"podMonitor": {"enabled": True}}})
    for part in ("operator", "router"):
        name = f"quire-{part}"
        [monitor] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("PodMonitor", name)]
        [deployment] = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Deployment", name)]
        pod = deployment["spec"]["template"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert endpoint["honorLabels"] is True  # their `namespace` is the LLMDeployment's, not the pod's
