"""From a clone to a cluster that knows this tree's images. Slow the first time, a second or two after that."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from cluster.handle import Cluster, current
from stack.progress import run_module


@dataclass(frozen=True)
class Image:
    """One built image: `ref` as pods name it, `archive` as the cluster loads it."""

    ref: str
    archive: str

    @property
    def repository(self) -> str:
        return self.ref.rpartition(":")[0]

    @property
    def tag(self) -> str:
        return self.ref.rpartition(":")[2]


@dataclass(frozen=True)
class Prepared:
    """A healthy cluster with both images on its nodes."""

    cluster: Cluster
    runtime: Image
    operator: Image


def prepare() -> Prepared:
    """Build what is missing, bring the cluster up if there is none, load the images."""
    run_module("cluster", "prerequisites", deadline_s=600)
    # Compiling the cluster's programs keeps the processors busy, building images the network: side by side.
    with ThreadPoolExecutor(2) as pool:
        tools = pool.submit(run_module, "cluster", "tools", deadline_s=2400)
        built = pool.submit(run_module, "images", "build", "runtime", "operator", "--json", deadline_s=2400)
        tools.result()
        images = {name: Image(entry["ref"], entry["archive"]) for name, entry in json.loads(built.result()).items()}
    runtime, operator = images["runtime"], images["operator"]
    run_module("cluster", "up", "--image", runtime.archive, "--image", operator.archive, deadline_s=900)
    return Prepared(current(), runtime, operator)
