"""Promise: the chart is upgraded, taken back, removed and installed again, and running models notice nothing of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.handle import Cluster
from stack import llmd, release
from stack.ask import stream_chat
from stack.load import Load
from stack.prepare import Prepared

pytestmark = pytest.mark.alone

NAME = "lasting"
FIELD = "progressDeadline"
"""Of `spec.rollout`; the chart of before does not know it yet."""
DEFINITION = "crd/llmdeployments.quire.dev"
SERVICE_PORT = 80


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart as it was a version ago: another version, and a definition without one of today's fields."""
    chart = tmp_path_factory.mktemp("earlier") / "quire"
    shutil.copytree(release.CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9"}))
    file = chart / "files" / "crds" / "llmdeployments.quire.dev.yaml"
    definition = yaml.safe_load(file.read_text())
    del schema(definition)["rollout"]["properties"][FIELD]
    file.write_text(yaml.safe_dump(definition))
    return chart


@pytest.fixture(scope="module", autouse=True)
def as_found(stack: Cluster, prepared: Prepared) -> Any:
    """Other modules find the release of this tree."""
    yield
    release.install(prepared)


def schema(definition: dict[str, Any]) -> dict[str, Any]:
    """Properties of the spec."""
    served = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    found: dict[str, Any] = served["spec"]["properties"]
    return found


def knows_the_field(cluster: Cluster) -> bool:
    return FIELD in schema(cluster.kubectl_json("get", DEFINITION))["rollout"]["properties"]


def pods(cluster: Cluster, namespace: str) -> dict[str, int]:
    """Restarts of the model's pods, by uid."""
    found = cluster.kubectl_json("get", "pods", "-n", namespace, "-l", f"quire.dev/deployment={NAME}")["items"]
    return {
        pod["metadata"]["uid"]: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for pod in found
    }


def settled(cluster: Cluster, namespace: str) -> dict[str, int]:
    """The pods once this operator has acted on the object."""
    llmd.prove_acted_on(cluster, namespace, NAME, replicas=1)
    return pods(cluster, namespace)


@pytest.mark.timeout(600)
def test_an_upgrade_brings_the_schema_and_rolls_nothing(
    stack: Cluster, prepared: Prepared, earlier: Path, namespace: str, router: str
) -> None:
    release.install(prepared, chart=earlier)
    assert not knows_the_field(stack)
    llmd.apply(stack, namespace, llmd.example(NAME))
    llmd.wait_ready(stack, namespace, NAME)
    before = pods(stack, namespace)
    assert len(before) == 1

    with Load(router, NAME, clients=2, max_tokens=32) as load:
        # The image of new pods changes with the version. One that is nowhere: a pod that rolled to it would never be ready.
        release.install(prepared, "images.runtime.tag=of-the-next-version")
        assert settled(stack, namespace) == before
    assert load.completed > 0 and load.errors == []
    assert knows_the_field(stack)
    assert FIELD in stack.kubectl("explain", "llmd.spec.rollout")


@pytest.mark.timeout(300)
def test_a_rollback_rolls_nothing(stack: Cluster, namespace: str, router: str) -> None:
    before = pods(stack, namespace)
    with Load(router, NAME, clients=2, max_tokens=32) as load:
        stack.helm("rollback", release.NAME, "--namespace", release.NAMESPACE, "--wait", "--timeout", "180s")
        assert settled(stack, namespace) == before
    assert load.completed > 0 and load.errors == []
    assert not knows_the_field(stack)


@pytest.mark.timeout(600)
def test_models_serve_on_without_the_chart_and_are_taken_over_when_it_comes_again(
    stack: Cluster, prepared: Prepared, namespace: str
) -> None:
    before = pods(stack, namespace)
    release.uninstall(stack)
    kept = stack.kubectl("get", "crds", "--output", "name").split()
    assert {f"customresourcedefinition.apiextensions.k8s.io/{kind}.quire.dev" for kind in
            ("llmdeployments", "llmadapters", "modelcaches")} <= set(kept)  # fmt: skip
    llmd.get(stack, namespace, NAME)
    assert pods(stack, namespace) == before
    with stack.reach(namespace, NAME, SERVICE_PORT) as url:
        assert "".join(stream_chat(url, NAME, "Does anyone hear me?", max_tokens=16))

    release.install(prepared)
    assert settled(stack, namespace) == before
    assert knows_the_field(stack)
