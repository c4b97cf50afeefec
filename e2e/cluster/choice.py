"""Which provider makes the cluster. Standard library only: the Makefile asks before anything is installed.

1. `KUBECONFIG` is set: that cluster, used as it is (unless it names a cluster of this harness).
2. A container engine answers and `kind` is installed: kind.
3. Otherwise: real components on this machine.
`QUIRE_CLUSTER_PROVIDER` = existing, kind or local overrides the order.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from cluster.caches import cache_root
from cluster.errors import HarnessError, UsageError
from cluster.layout import Layout
from cluster.run import run

NAMES = ("existing", "kind", "local")
ENGINES = ("docker", "podman")


def decide(environment: Mapping[str, str], own: Mapping[Path, str], kind_works: Callable[[], bool]) -> str:
    """The provider's name. own: providers by the kubeconfigs that they write. Asks `kind_works` only where nothing else decides."""
    explicit = environment.get("QUIRE_CLUSTER_PROVIDER", "")
    if explicit:
        if explicit not in NAMES:
            raise UsageError(f"QUIRE_CLUSTER_PROVIDER is {explicit!r}; it must be one of {', '.join(NAMES)}")
        return explicit
    if given := environment.get("KUBECONFIG", ""):
        return own.get(Path(given), "existing")
    return "kind" if kind_works() else "local"


def provider() -> str:
    """The name of the provider for this machine and environment."""
    own = {Layout.from_environment().kubeconfig: "local", kind_kubeconfig(): "kind"}
    return decide(os.environ, own, lambda: shutil.which("kind") is not None and engine() is not None)


def kind_kubeconfig() -> Path:
    """Where kind's cluster is described."""
    return cache_root() / "kind" / "kubeconfig"


def engine() -> str | None:
    """A container engine whose daemon answers, or None."""
    for program in ENGINES:
        if shutil.which(program):
            try:
                run([program, "info"], deadline_s=20)
            except HarnessError:
                continue  # installed, but it does not run
            return program
    return None
