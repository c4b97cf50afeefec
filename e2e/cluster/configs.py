"""Configuration files of the cluster's programs. Pure: layout and numbers in, text out.

Everything that is not a default of the program has its reason here; the values were found by trying.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.layout import Layout, Machine

CLUSTER_DOMAIN = "cluster.local"


@dataclass(frozen=True)
class Capacity:
    """What this machine has, and what each node offers of it. Bytes and millicores."""

    cpu_m: int
    memory: int
    node_cpu_m: int
    node_memory: int


def share(cpu_count: int, memory: int, nodes: int) -> Capacity:
    """Divide the machine between nodes.

    Every node reports the whole machine as its capacity; the difference becomes `systemReserved`, which nothing enforces:
    it only keeps the scheduler from selling one machine several times. A node offers at least 1.5 CPUs, because requests
    of CPU are weights, not promises, and two small nodes must hold the operator, the router and three runtimes.
    """
    cpu_m = cpu_count * 1000
    node_cpu_m = min(cpu_m, max(1500, cpu_m // nodes))
    spare = max(memory - (1 << 30), memory // 2)  # the control plane and the host's own programs
    return Capacity(cpu_m, memory, node_cpu_m, spare // nodes)


def kubeconfig(layout: Layout, user: str) -> str:
    """A kubeconfig (JSON is YAML) that names the certificate files; the paths hold inside machines too."""
    return _json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "quire",
                    "cluster": {
                        "server": f"https://{layout.network.address(0)}:6443",
                        "certificate-authority": str(layout.pki / "ca.crt"),
                    },
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate": str(layout.pki / f"{user}.crt"),
                        "client-key": str(layout.pki / f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": "quire", "context": {"cluster": "quire", "user": user}}],
            "current-context": "quire",
        }
    )


def corefile(layout: Layout) -> str:
    """Two server blocks: a catch-all `template` beside `kubernetes` would answer first; without it, outside names are REFUSED and clients retry."""
    address = layout.network.address(0)
    return f"""\
{CLUSTER_DOMAIN}:53 in-addr.arpa:53 {{
    bind {address}
    errors
    health 127.0.0.1:8080
    ready 127.0.0.1:8181
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
        kubeconfig {layout.work / "dns.conf"}
        pods insecure
        ttl 5
    }}
}}
.:53 {{
    bind {address}
    errors
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def containerd(layout: Layout, machine: str, sandbox_image: str, cni_bin: Path) -> str:
    """containerd of a node. `restrict_oom_score_adj`: without CAP_SYS_RESOURCE runc cannot lower it and fails obscurely."""
    folder = layout.machine(machine)
    return f"""\
version = 2
root = "{layout.store(machine)}"
state = "/run/containerd"
[grpc]
  address = "{layout.containerd_socket(machine)}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder / "opt"}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  max_container_log_line_size = 262144
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_bin}"
  conf_dir = "{folder / "cni"}"
"""


def seed_containerd(layout: Layout) -> str:
    """containerd that only imports images into the seed."""
    return f"""\
version = 2
root = "{layout.seed / "store"}"
state = "{layout.seed / "state"}"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = "{layout.seed / "c.sock"}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{layout.seed / "opt"}"
"""


def cni(layout: Layout, machine: Machine) -> str:
    """Pod network of a node. `ipMasq` would hide a pod's address from pods on other nodes."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": layout.network.pod_subnet(machine.index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": ipam}
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return _json({"cniVersion": "1.0.0", "name": "quire", "plugins": [bridge, portmap]})


def kubelet(layout: Layout, machine: Machine, capacity: Capacity) -> str:
    """KubeletConfiguration of a node; failures show within seconds instead of the default minute."""
    name, pki = machine.name, layout.pki
    return _json(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / f"{name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{name}.key"),
            "containerRuntimeEndpoint": f"unix://{layout.containerd_socket(name)}",
            "volumePluginDir": str(layout.machine(name) / "volumeplugins"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{layout.cgroup}/{name}",
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "protectKernelDefaults": False,
            "clusterDNS": [layout.network.address(0)],
            "clusterDomain": CLUSTER_DOMAIN,
            "resolvConf": "",
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "10s",
            "nodeLeaseDurationSeconds": 4,
            "evictionHard": {"nodefs.available": "1%", "imagefs.available": "1%", "memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,  # `load` decides which images go
            "maxPods": 60,
            "serializeImagePulls": False,
            "readOnlyPort": 0,
            "systemReserved": {
                "cpu": f"{capacity.cpu_m - capacity.node_cpu_m}m",
                "memory": str(capacity.memory - capacity.node_memory),
            },
        }
    )


def kube_proxy(layout: Layout, machine: Machine) -> str:
    """KubeProxyConfiguration. The one on the control plane gives the host access to Services; no Node is called cp, so it takes node-1's name."""
    return _json(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(layout.work / "proxy.conf")},
            "mode": "iptables",
            "iptables": {"minSyncPeriod": "0s"},
            "clusterCIDR": str(layout.network.pods),
            "bindAddress": layout.network.address(machine.index),
            "hostnameOverride": machine.name if machine.index else "node-1",
            "conntrack": {"maxPerCore": 0},
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
    )


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"
