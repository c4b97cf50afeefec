"""A cluster that somebody else runs, named by KUBECONFIG. The harness neither starts nor ends it, and cannot put images on its nodes."""

import os
from collections.abc import Iterable
from pathlib import Path

from cluster import programs
from cluster.client import Cluster
from cluster.errors import CommandError, DeadlineError, StateError, UsageError
from cluster.plan import ClusterConfig
from cluster.progress import Progress
from cluster.status import Report


class ExistingProvider:
    """Implements `providers.Provider`."""

    name = "existing"

    def __init__(self, kubeconfig: str, progress: Progress) -> None:
        self._kubeconfig = Path(kubeconfig)  # may be a list of files with colons between, as kubectl takes it
        self._progress = progress
        if not any(Path(part).is_file() for part in kubeconfig.split(os.pathsep) if part):
            raise UsageError(f"KUBECONFIG is {kubeconfig!r}, which is not a file; unset it to get a local cluster")

    def prerequisites(self) -> tuple[str, ...]:
        return ()

    def up(self, config: ClusterConfig, images: Iterable[Path] = ()) -> None:
        self.load(images)
        self.connect()
        self._progress.say(f"use the existing cluster of {self._kubeconfig}")

    def down(self, purge: bool = False) -> None:
        self._progress.say(f"the cluster of {self._kubeconfig} is not this harness's; it is left as it is")

    def load(self, images: Iterable[Path]) -> None:
        if paths := [str(path) for path in images]:
            raise UsageError(
                f"{', '.join(paths)}: images cannot be loaded into an existing cluster; push them to a registry that it reads "
                "and name them with QUIRE_RUNTIME_IMAGE and QUIRE_OPERATOR_IMAGE"
            )

    def connect(self) -> Cluster:
        found = programs.clients(self._progress)
        cluster = Cluster(self.name, self._kubeconfig, found["kubectl"], found["helm"], direct=False)
        try:
            cluster.kubectl("get", "--raw", "/readyz", deadline_s=30)
        except (CommandError, DeadlineError) as error:
            raise StateError(f"the cluster of KUBECONFIG={self._kubeconfig} does not answer: {error}") from error
        return cluster

    def status(self) -> Report:
        return Report(self.connect().kubectl("get", "nodes", "-o", "wide").rstrip(), healthy=True)
