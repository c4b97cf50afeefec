"""Who makes the cluster: the seam, and the choice. A provider is chosen once per process and never falls back to another.

1. `KUBECONFIG` is set: that cluster, used as it is (unless it names a cluster of this harness).
2. A container engine answers and `kind` is installed: kind.
3. Otherwise: real components on this machine.
`QUIRE_CLUSTER_PROVIDER` = existing, kind or local overrides the order.
"""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from cluster.client import Cluster
from cluster.errors import UsageError
from cluster.existing import ExistingProvider
from cluster.kind import KindProvider, engine, kind_kubeconfig
from cluster.layout import Layout
from cluster.local import LocalProvider
from cluster.plan import ClusterConfig
from cluster.progress import Progress
from cluster.status import Report

NAMES = ("existing", "kind", "local")


class Provider(Protocol):
    """What the command line and tests need from whoever makes the cluster."""

    name: str

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


def decide(environment: Mapping[str, str], own_kubeconfigs: Iterable[Path], has_kind: bool, has_engine: bool) -> str:
    """The provider's name. Pure."""
    explicit = environment.get("QUIRE_CLUSTER_PROVIDER", "")
    if explicit:
        if explicit not in NAMES:
            raise UsageError(f"QUIRE_CLUSTER_PROVIDER is {explicit!r}; it must be one of {', '.join(NAMES)}")
        return explicit
    given = environment.get("KUBECONFIG", "")
    if given and Path(given) not in set(own_kubeconfigs):
        return "existing"
    return "kind" if has_kind and has_engine else "local"


def choose(progress: Progress | None = None) -> Provider:
    """The provider for this machine and environment."""
    progress = progress or Progress()
    layout = Layout.from_environment()
    has_kind = shutil.which("kind") is not None
    own = (layout.kubeconfig, kind_kubeconfig())
    name = decide(os.environ, own, has_kind, has_kind and engine() is not None)
    if name == "existing":
        return ExistingProvider(os.environ.get("KUBECONFIG", ""), progress)
    return KindProvider(progress) if name == "kind" else LocalProvider(layout, progress)
