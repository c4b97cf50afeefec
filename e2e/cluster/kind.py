"""kind, where a container engine runs. Written by kind's documentation; the machines this was made on have no engine, so it is untried there."""

import json
from collections.abc import Iterable
from pathlib import Path

from cluster import archive, programs
from cluster.caches import exclusive
from cluster.choice import kind_kubeconfig
from cluster.client import Cluster
from cluster.errors import HarnessError, StateError, UsageError
from cluster.plan import ClusterConfig
from cluster.progress import Progress
from cluster.run import run
from cluster.status import Report

CLUSTER = "quire"

_PATCH = """\
kind: ClusterConfiguration
apiServer:
  extraArgs:
    enable-aggregator-routing: "true"
controllerManager:
  extraArgs:
    horizontal-pod-autoscaler-sync-period: "2s"
    horizontal-pod-autoscaler-downscale-stabilization: "5s"
    horizontal-pod-autoscaler-initial-readiness-delay: "1s"
"""


def cluster_config(config: ClusterConfig) -> str:
    """kind's configuration (JSON is YAML): same address ranges and autoscaler timing as the local provider."""
    roles = ["control-plane", *["worker"] * config.nodes]
    document = {
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kind": "Cluster",
        "networking": {"podSubnet": "198.18.0.0/17", "serviceSubnet": "198.19.0.0/17"},
        "nodes": [{"role": role} for role in roles],
        "kubeadmConfigPatches": [_PATCH],
    }
    return json.dumps(document, indent=1)


class KindProvider:
    """Implements `providers.Provider`."""

    name = "kind"

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._kubeconfig = kind_kubeconfig()

    def prerequisites(self) -> tuple[str, ...]:
        return ()

    def up(self, config: ClusterConfig, images: Iterable[Path] = ()) -> None:
        if config.gpus:
            raise UsageError(
                f"--gpus is {config.gpus}; fake GPUs need the local provider (QUIRE_CLUSTER_PROVIDER=local)"
            )
        with exclusive(self._kubeconfig.parent / "lock", self._progress, "the kind cluster"):
            if self._exists() and (reason := self._unfit(config)):
                self._progress.say(f"delete the kind cluster first: {reason}")
                self._delete()
            if self._exists():
                self._progress.say("reuse the running kind cluster")
            else:
                with self._progress.step(f"create a kind cluster of {config.nodes} nodes"):
                    command = ["kind", "create", "cluster", "--name", CLUSTER, "--kubeconfig", str(self._kubeconfig)]
                    run(
                        [*command, "--config", "-", "--wait", "180s"], input_text=cluster_config(config), deadline_s=900
                    )
        self.load(images)

    def down(self, purge: bool = False) -> None:
        with exclusive(self._kubeconfig.parent / "lock", self._progress, "the kind cluster"):
            self._delete()

    def _delete(self) -> None:
        with self._progress.step("delete the kind cluster"):
            run(["kind", "delete", "cluster", "--name", CLUSTER, "--kubeconfig", self._kubeconfig], deadline_s=300)

    def _exists(self) -> bool:
        return CLUSTER in run(["kind", "get", "clusters"]).split()

    def _unfit(self, config: ClusterConfig) -> str | None:
        """Why the cluster that exists cannot be used, or None: it may be half made, or its containers stopped."""
        nodes = len(run(["kind", "get", "nodes", "--name", CLUSTER]).split())
        if nodes != config.nodes + 1:
            return f"it has {nodes} nodes instead of {config.nodes + 1}"
        try:
            self.connect().kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=30s")
        except HarnessError as error:
            return str(error)
        return None

    def load(self, images: Iterable[Path]) -> None:
        for path in images:
            refs = archive.read(path).refs
            with self._progress.step(f"load {', '.join(refs)}"):
                run(["kind", "load", "image-archive", path, "--name", CLUSTER], deadline_s=900)

    def connect(self) -> Cluster:
        if not self._exists():
            raise StateError("no kind cluster runs; start one with `make cluster-up`")
        found = programs.clients(self._progress)
        return Cluster(self.name, self._kubeconfig, found["kubectl"], found["helm"], direct=False)

    def status(self) -> Report:
        return Report(self.connect().kubectl("get", "nodes", "-o", "wide").rstrip(), healthy=True)
