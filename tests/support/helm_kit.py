"""The chart as Helm renders it. Helm is built once from the Go module proxy where it is not in the cache yet."""

from __future__ import annotations

import functools
import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from cluster.progress import Progress
from cluster.tools import HELM, ensure

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "quire"
NAMESPACE = "quire-system"

Object = dict[str, Any]


class HelmError(Exception):
    """What Helm says on standard error."""


@functools.cache
def _program() -> Path:
    return ensure(Progress(), (HELM,))["helm"]


def helm(*args: str, values: Object | None = None) -> str:
    """What it prints; raises HelmError."""
    done = subprocess.run(
        [_program(), *args, "--values", "-"],
        input=json.dumps(values or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise HelmError(done.stderr)
    return done.stdout


def render(
    values: Object | None = None, *, release: str = "quire", namespace: str = NAMESPACE, api: str = ""
) -> list[Object]:
    """The objects of the chart; raises HelmError. api: a group and version that the cluster has beside its own."""
    command = ["template", release, str(CHART), "--namespace", namespace, "--kube-version", "1.34.4"]
    out = helm(*command, *(("--api-versions", api) if api else ()), values=values)
    return [item for item in yaml.safe_load_all(out) if item]


def variables(objects: list[Object], part: str) -> dict[str, str]:
    """What the chart sets in the container of operator or router."""
    [found] = [each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] == f"quire-{part}"]
    [container] = found["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry["value"] for entry in container["env"]}
