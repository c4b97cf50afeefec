"""Who makes the cluster: the seam. A provider is chosen (`choice`) once per process and never falls back to another."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from cluster import choice
from cluster.client import Cluster
from cluster.existing import ExistingProvider
from cluster.kind import KindProvider
from cluster.layout import Layout
from cluster.local import LocalProvider
from cluster.plan import ClusterConfig
from cluster.progress import Progress
from cluster.status import Report


class Provider(Protocol):
    """What the command line and tests need from whoever makes the cluster."""

    name: str

    def prerequisites(self) -> tuple[str, ...]:
        """Install the Debian or Ubuntu packages that are missing for this provider; returns them."""

    def up(self, config: ClusterConfig, images: Iterable[Path] = ()) -> None:
        """Idempotent: returns when the wanted cluster runs and holds the images."""

    def down(self, purge: bool = False) -> None:
        """Idempotent: returns when nothing of the cluster is left."""

    def load(self, images: Iterable[Path]) -> None:
        """Make the images of the archives available to pods."""

    def connect(self) -> Cluster:
        """The running cluster. Raises StateError when none runs."""

    def status(self) -> Report:
        """A table for people. Raises StateError when there is no cluster at all."""


def choose(progress: Progress | None = None) -> Provider:
    """The provider for this machine and environment."""
    progress = progress or Progress()
    name = choice.provider()
    if name == "existing":
        return ExistingProvider(os.environ.get("KUBECONFIG", ""), progress)
    return KindProvider(progress) if name == "kind" else LocalProvider(Layout.from_environment(), progress)
