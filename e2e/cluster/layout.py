"""Names, addresses and paths of one cluster: constants and arithmetic, no I/O but reading the environment.

One cluster per machine, in one directory that does not depend on the clone, so that any checkout finds, reuses and ends
it. The harness's own tests use slot 1: other names and addresses, so that they run beside a cluster in use.
Everything is in 198.18.0.0/15, which is reserved for benchmarks inside one machine (RFC 2544).
"""

import os
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network
from pathlib import Path

from cluster.errors import UsageError

DEFAULT_BASE = "/var/lib/quire-cluster"
MAX_BASE_LEN = 48
"""A unix socket's path ends at 107 bytes; the longest below the base is run/node-NN/kubelet/device-plugins/kubelet.sock."""
MAX_NODES = 20
SLOTS = 2
CONTROL_PLANE = "cp"


@dataclass(frozen=True)
class Network:
    """Addresses of one slot."""

    slot: int = 0

    @property
    def bridge(self) -> str:
        return f"quire{self.slot}"

    def veth(self, machine: str) -> str:
        """The host's end of a machine's link; at most 15 characters."""
        return f"qv{self.slot}-{machine}"

    @property
    def _infra(self) -> str:
        return f"198.18.{254 + self.slot}"

    @property
    def infra(self) -> IPv4Network:
        return IPv4Network(f"{self._infra}.0/24")

    @property
    def host(self) -> str:
        """This machine as the cluster sees it; pods reach processes on the host here."""
        return f"{self._infra}.1"

    def address(self, index: int) -> str:
        """Address of a machine: 0 is the control plane, nodes count from 1."""
        return f"{self._infra}.{10 + index}"

    @property
    def pods(self) -> IPv4Network:
        return IPv4Network(f"198.18.{128 * self.slot}.0/18")

    def pod_subnet(self, index: int) -> str:
        return f"198.18.{128 * self.slot + index}.0/24"

    @property
    def services(self) -> IPv4Network:
        return IPv4Network(f"198.19.{128 * self.slot}.0/17")

    @property
    def api_service(self) -> str:
        """Address of the Service `kubernetes`: always the first."""
        return str(self.services[1])

    @property
    def all(self) -> tuple[IPv4Network, ...]:
        return (self.infra, self.pods, self.services)


@dataclass(frozen=True)
class Machine:
    """One machine of the cluster: a process tree in its own namespaces. Index 0 is the control plane."""

    index: int

    @property
    def name(self) -> str:
        return f"node-{self.index}" if self.index else CONTROL_PLANE


@dataclass(frozen=True)
class Layout:
    """Where everything of one cluster is."""

    base: Path = Path(DEFAULT_BASE)
    slot: int = 0

    def __post_init__(self) -> None:
        if not self.base.is_absolute() or len(str(self.base)) > MAX_BASE_LEN:
            raise UsageError(
                f"QUIRE_CLUSTER_DIR is {self.base}; it must be an absolute path of at most {MAX_BASE_LEN} characters, "
                "because unix sockets lie below it"
            )
        if self.slot not in range(SLOTS):
            raise UsageError(f"QUIRE_CLUSTER_SLOT is {self.slot}; it must be 0 to {SLOTS - 1}")

    @classmethod
    def from_environment(cls) -> "Layout":
        """`QUIRE_CLUSTER_DIR` and `QUIRE_CLUSTER_SLOT`, or the defaults."""
        slot = os.environ.get("QUIRE_CLUSTER_SLOT", "0")
        if not slot.isdecimal():
            raise UsageError(f"QUIRE_CLUSTER_SLOT is {slot!r}; it must be 0 to {SLOTS - 1}")
        return cls(Path(os.environ.get("QUIRE_CLUSTER_DIR") or DEFAULT_BASE), int(slot))

    @cached_property
    def network(self) -> Network:
        return Network(self.slot)

    @property
    def cgroup(self) -> str:
        """Name of the cluster's cgroup below every hierarchy's root."""
        return f"quire{self.slot}"

    @property
    def lock(self) -> Path:
        """Held while the cluster is changed: up, down and load exclude each other."""
        return self.base / "lock"

    @property
    def state(self) -> Path:
        return self.base / "state.json"

    @property
    def work(self) -> Path:
        """Exists while a cluster does; gone after down."""
        return self.base / "run"

    @property
    def logs(self) -> Path:
        """Logs of the running or the last cluster; they outlive it, so that a failed start can be read."""
        return self.base / "logs"

    @property
    def seed(self) -> Path:
        """containerd store that every node's store is hard-linked from."""
        return self.base / "seed"

    @property
    def parked(self) -> Path:
        """Node stores between two clusters."""
        return self.base / "parked"

    @property
    def pki(self) -> Path:
        return self.work / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.work / "admin.conf"

    def machine(self, name: str) -> Path:
        return self.work / name

    def log(self, machine: str, daemon: str) -> Path:
        return self.logs / machine / f"{daemon}.log"

    @property
    def audit(self) -> Path:
        """What was asked of the API server, an event a line (`audit`)."""
        return self.log(CONTROL_PLANE, "audit")

    def store(self, machine: str) -> Path:
        """containerd's root of a node."""
        return self.work / machine / "containerd"

    def containerd_socket(self, machine: str) -> Path:
        return self.work / machine / "c.sock"
