"""The whole cluster as data: which machines, which files, which command lines. Pure.

`local` writes and runs what this says. The plan's fingerprint decides whether a running cluster is the wanted one.
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster import audit, configs
from cluster.certs import FRONT_PROXY_CLIENT
from cluster.errors import UsageError
from cluster.layout import MAX_NODES, Layout, Machine

MAX_GPUS = 16
GPU_RESOURCE = "nvidia.com/gpu"
GPU_PRODUCT = "NVIDIA-H200"


@dataclass(frozen=True)
class ClusterConfig:
    """What a caller of `up` chooses."""

    nodes: int = 2
    gpus: int = 0
    """Fake GPUs per node."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise UsageError(f"--nodes is {self.nodes}; it must be 1 to {MAX_NODES}")
        if not 0 <= self.gpus <= MAX_GPUS:
            raise UsageError(f"--gpus is {self.gpus}; it must be 0 to {MAX_GPUS}")

    @property
    def node_machines(self) -> tuple[Machine, ...]:
        return tuple(Machine(index) for index in range(1, self.nodes + 1))

    @property
    def machines(self) -> tuple[Machine, ...]:
        return (Machine(0), *self.node_machines)


@dataclass(frozen=True)
class Host:
    """What the plan needs to know of this machine."""

    programs: dict[str, Path]
    cni_bin: Path
    sandbox_image: str
    cpu_count: int
    memory: int


@dataclass(frozen=True)
class Plan:
    """Files by path, and command lines by machine and daemon."""

    config: ClusterConfig
    files: dict[Path, str]
    daemons: dict[str, dict[str, tuple[str, ...]]]

    @property
    def fingerprint(self) -> str:
        """Changes when any file or command line does. Certificates are not part of it: they differ each time.

        Programs count by version, not by place, so that another home folder or clone finds the same cluster.
        """
        content = {
            "files": {str(path): text for path, text in self.files.items()},
            "daemons": {
                name: {daemon: _placeless(argv) for daemon, argv in daemons.items()}
                for name, daemons in self.daemons.items()
            },
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


_OWN_PLACE = (f"PYTHONPATH={Path(__file__).resolve().parent.parent}", sys.executable)
"""Words of a command line that say where this clone and its interpreter are."""


def _placeless(argv: tuple[str, ...]) -> list[str]:
    """A command line without the folders of one user: a built program keeps `NAME-HASH/bin/PROGRAM`."""
    program, *arguments = argv
    return ["/".join(Path(program).parts[-3:]), *(word for word in arguments if word not in _OWN_PLACE)]


def render(config: ClusterConfig, layout: Layout, host: Host) -> Plan:
    """The plan for a configuration on a machine."""
    capacity = configs.share(host.cpu_count, host.memory, config.nodes)
    files = {
        layout.work / f"{user}.conf": configs.kubeconfig(layout, user)
        for user in ("admin", "kcm", "sched", "proxy", "dns")
    }
    files[layout.work / "Corefile"] = configs.corefile(layout)
    files[layout.work / "audit.json"] = json.dumps(audit.POLICY, indent=1)
    for machine in config.machines:
        folder = layout.machine(machine.name)
        files[folder / "kube-proxy.json"] = configs.kube_proxy(layout, machine)
    for node in config.node_machines:
        folder = layout.machine(node.name)
        files[layout.work / f"{node.name}.conf"] = configs.kubeconfig(layout, node.name)
        files[folder / "kubelet.json"] = configs.kubelet(layout, node, capacity)
        files[folder / "containerd.toml"] = configs.containerd(layout, node.name, host.sandbox_image, host.cni_bin)
        files[folder / "cni" / "10-quire.conflist"] = configs.cni(layout, node)
    daemons = {machine.name: _node(layout, machine, config, host.programs) for machine in config.node_machines}
    return Plan(config, files, {Machine(0).name: _control_plane(layout, host.programs), **daemons})


def _flags(**values: object) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in values.items())


def _control_plane(layout: Layout, programs: dict[str, Path]) -> dict[str, tuple[str, ...]]:
    work, pki, address = layout.work, layout.pki, layout.network.address(0)
    etcd, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    return {
        "etcd": (
            str(programs["etcd"]),
            *_flags(
                data_dir=layout.machine("cp") / "etcd",
                listen_client_urls=etcd,
                advertise_client_urls=etcd,
                listen_peer_urls=peer,
                initial_advertise_peer_urls=peer,
                initial_cluster=f"default={peer}",
            ),
            "--unsafe-no-fsync",  # the data does not outlive the cluster
        ),
        "apiserver": (
            str(programs["kube-apiserver"]),
            *_flags(
                etcd_servers=etcd,
                secure_port=6443,
                bind_address=address,
                advertise_address=address,
                tls_cert_file=pki / "apiserver.crt",
                tls_private_key_file=pki / "apiserver.key",
                client_ca_file=pki / "ca.crt",
                service_account_key_file=pki / "sa.pub",
                service_account_signing_key_file=pki / "sa.key",
                service_account_issuer="https://kubernetes.default.svc",
                service_cluster_ip_range=layout.network.services,
                authorization_mode="Node,RBAC",
                enable_admission_plugins="NodeRestriction",
                allow_privileged="true",
                kubelet_certificate_authority=pki / "ca.crt",
                kubelet_client_certificate=pki / "apiserver-kubelet.crt",
                kubelet_client_key=pki / "apiserver-kubelet.key",
                kubelet_preferred_address_types="InternalIP",
                requestheader_client_ca_file=pki / "front-ca.crt",
                requestheader_allowed_names=FRONT_PROXY_CLIENT,
                requestheader_username_headers="X-Remote-User",
                requestheader_group_headers="X-Remote-Group",
                requestheader_extra_headers_prefix="X-Remote-Extra-",
                proxy_client_cert_file=pki / "front.crt",
                proxy_client_key_file=pki / "front.key",
                audit_policy_file=work / "audit.json",
                audit_log_path=layout.audit,
                audit_log_maxsize=audit.MAX_MB,
                audit_log_maxbackup=1,
                # Aggregated APIs and webhooks by endpoint address: the apiserver then needs no Service routing.
                enable_aggregator_routing="true",
                default_not_ready_toleration_seconds=5,
                default_unreachable_toleration_seconds=5,
            ),
        ),
        "controller-manager": (
            str(programs["kube-controller-manager"]),
            *_clients(work / "kcm.conf"),
            *_flags(
                service_account_private_key_file=pki / "sa.key",
                root_ca_file=pki / "ca.crt",
                use_service_account_credentials="true",
                cluster_signing_cert_file=pki / "ca.crt",
                cluster_signing_key_file=pki / "ca.key",
                leader_elect="false",
                bind_address="127.0.0.1",
                node_monitor_period="2s",
                node_monitor_grace_period="12s",
                horizontal_pod_autoscaler_sync_period="2s",
                horizontal_pod_autoscaler_downscale_stabilization="5s",
                horizontal_pod_autoscaler_tolerance="0.1",
                horizontal_pod_autoscaler_initial_readiness_delay="1s",
                horizontal_pod_autoscaler_cpu_initialization_period="1s",
            ),
        ),
        "scheduler": (
            str(programs["kube-scheduler"]),
            *_clients(work / "sched.conf"),
            *_flags(leader_elect="false", bind_address="127.0.0.1"),
        ),
        "coredns": (str(programs["coredns"]), "-conf", str(work / "Corefile")),
        "kube-proxy": _kube_proxy(layout, "cp", programs),
    }


def _node(
    layout: Layout, node: Machine, config: ClusterConfig, programs: dict[str, Path]
) -> dict[str, tuple[str, ...]]:
    folder = layout.machine(node.name)
    labels = {"topology.kubernetes.io/zone": f"zone-{node.index}"}
    if config.gpus:
        labels["nvidia.com/gpu.product"] = GPU_PRODUCT
    daemons = {
        "containerd": (str(programs["containerd"]), "-c", str(folder / "containerd.toml")),
        "kubelet": (
            str(programs["kubelet"]),
            *_flags(
                config=folder / "kubelet.json",
                kubeconfig=layout.work / f"{node.name}.conf",
                hostname_override=node.name,
                node_ip=layout.network.address(node.index),
                node_labels=",".join(f"{key}={value}" for key, value in labels.items()),
            ),
        ),
        "kube-proxy": _kube_proxy(layout, node.name, programs),
    }
    if config.gpus:
        command = ("-P", "-m", "cluster.gpu", "--count", str(config.gpus), "--node", node.name)
        daemons["gpu-plugin"] = ("/usr/bin/env", *_OWN_PLACE, *command)
    return daemons


def _clients(kubeconfig: Path) -> tuple[str, ...]:
    return _flags(kubeconfig=kubeconfig, authentication_kubeconfig=kubeconfig, authorization_kubeconfig=kubeconfig)


def _kube_proxy(layout: Layout, machine: str, programs: dict[str, Path]) -> tuple[str, ...]:
    return (str(programs["kube-proxy"]), f"--config={layout.machine(machine) / 'kube-proxy.json'}")
