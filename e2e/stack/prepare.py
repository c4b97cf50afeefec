"""From a clone to a cluster that knows this tree's images. Slow the first time, a second or two after that."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.errors import UsageError
from cluster.handle import Cluster
from cluster.providers import choose
from stack.progress import PROGRESS, run_module, run_modules

VARIABLES = {"runtime": "QUIRE_RUNTIME_IMAGE", "operator": "QUIRE_OPERATOR_IMAGE"}
"""References of images that are in a registry already; both or none."""


@dataclass(frozen=True)
class Image:
    """One image: `ref` as pods name it, `archive` as the cluster loads it; None where the cluster pulls it."""

    ref: str
    archive: str | None = None

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

    @property
    def references(self) -> dict[str, str]:
        """Environment for processes that use the same images, so that they neither build nor load them."""
        return {VARIABLES["runtime"]: self.runtime.ref, VARIABLES["operator"]: self.operator.ref}


def given_images(environment: Mapping[str, str], provider: str) -> dict[str, Image] | None:
    """Images that the caller names instead of having them built. Raises UsageError where they must be and are not."""
    refs = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
    if not any(refs.values()) and provider != "existing":
        return None
    for name, ref in refs.items():
        if not ref:
            why = "an existing cluster pulls its images" if provider == "existing" else "the other one is set"
            raise UsageError(f"{VARIABLES[name]} is not set, but {why}; push the image of {name} and name it there")
        if ":" not in ref.rpartition("/")[2]:
            raise UsageError(f"{VARIABLES[name]} is {ref!r}; it must end with a tag, as in quire/{name}:1.0")
    return {name: Image(ref) for name, ref in refs.items()}


def prepare() -> Prepared:
    """Build what is missing, bring the cluster up if there is none, load the images."""
    provider = choose(PROGRESS)
    images = given_images(os.environ, provider.name)
    run_module("cluster", "prerequisites")
    if images:
        run_module("cluster", "tools")
    else:
        # Compiling the cluster's programs keeps the processors busy, building images the network: side by side.
        build = ("images", "build", "runtime", "operator", "--json")
        _, built = run_modules(("cluster", "tools"), build)
        images = {name: Image(entry["ref"], entry["archive"]) for name, entry in json.loads(built).items()}
    archives = [image.archive for image in images.values() if image.archive]
    run_module("cluster", "up", *(word for archive in archives for word in ("--image", archive)))
    return Prepared(provider.connect(), images["runtime"], images["operator"])
