"""The Helm release `quire` in `quire-system`: installed from this tree's chart with this tree's images."""

from __future__ import annotations

from pathlib import Path

from cluster.handle import Cluster
from stack.prepare import Prepared
from stack.progress import PROGRESS, ROOT

NAME = "quire"
NAMESPACE = "quire-system"
CHART = ROOT / "charts" / "quire"


def installed(cluster: Cluster) -> bool:
    """True where the release exists, whatever its state."""
    return NAME in cluster.helm("list", "--namespace", NAMESPACE, "--all", "--short").split()


def install(prepared: Prepared, *values: str, chart: Path = CHART) -> None:
    """`helm upgrade --install`, waiting until operator and router are ready. values: extra `--set` expressions."""
    settings = [
        f"images.runtime.repository={prepared.runtime.repository}",
        f"images.runtime.tag={prepared.runtime.tag}",
        f"images.operator.repository={prepared.operator.repository}",
        f"images.operator.tag={prepared.operator.tag}",
        *values,
    ]
    sets = [word for setting in settings for word in ("--set", setting)]
    with PROGRESS.step(f"chart {NAME} in {NAMESPACE}"):
        prepared.cluster.helm(
            "upgrade", "--install", NAME, str(chart), "--namespace", NAMESPACE, "--create-namespace",
            *sets, "--wait", "--timeout", "180s",
        )  # fmt: skip


def uninstall(cluster: Cluster) -> None:
    """Remove the release; CRDs and LLMDeployments stay by design."""
    with PROGRESS.step(f"uninstall {NAME}"):
        cluster.helm("uninstall", NAME, "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
