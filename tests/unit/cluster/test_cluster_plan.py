"""The plan: what is written and run, and what makes it another cluster."""

import dataclasses
import json
import tomllib
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from cluster import audit, configs, plan
from cluster.errors import UsageError
from cluster.layout import MAX_NODES, SLOTS, Layout, Network
from cluster.plan import ClusterConfig, Host

PROGRAMS = (
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
    "helm",
    "coredns",
)
HOST = Host({name: Path("/bin") / name for name in PROGRAMS}, Path("/cni"), "docker.io/quire/pause:1", 2, 23 << 30)
LAYOUT = Layout(Path("/var/lib/q"))
GIB = 1 << 30


def test_every_file_that_a_command_line_names_is_written() -> None:
    rendered = plan.render(ClusterConfig(nodes=3), LAYOUT, HOST)
    written = {str(path) for path in rendered.files}
    for daemons in rendered.daemons.values():
        for argv in daemons.values():
            for word in argv:
                path = word.rpartition("=")[2]
                if path.startswith(str(LAYOUT.work)) and path.endswith((".conf", ".json", ".toml", "Corefile")):
                    assert path in written, word


def test_the_files_parse_and_name_their_machine() -> None:
    rendered = plan.render(ClusterConfig(nodes=2), LAYOUT, HOST)
    for path, text in rendered.files.items():
        if path.suffix in (".json", ".conf", ".conflist"):
            json.loads(text)
        elif path.suffix == ".toml":
            tomllib.loads(text)
    kubelet = json.loads(rendered.files[LAYOUT.machine("node-2") / "kubelet.json"])
    assert kubelet["cgroupRoot"] == "/quire0/node-2"
    assert kubelet["clusterDNS"] == ["198.18.254.10"]
    conflist = json.loads(rendered.files[LAYOUT.machine("node-2") / "cni" / "10-quire.conflist"])
    assert conflist["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "198.18.2.0/24"}]]


def test_the_audit_log_is_read_by_user_and_not_beyond_its_last_whole_line() -> None:
    def line(user: str, number: int) -> str:
        return json.dumps({"user": {"username": user}, "number": number, "about": "a"})

    text = "\n".join((line("a", 1), line("ab", 2), line("b", 3), line("a", 4), line("a", 5)))
    assert [event["number"] for event in audit.of_user(text, "a")] == [1, 4]
    assert [event["number"] for event in audit.of_user(text + "\n", "a")] == [1, 4, 5]


def test_gpus_add_a_plugin_and_a_label_to_every_node_only_when_asked() -> None:
    without = plan.render(ClusterConfig(nodes=2), LAYOUT, HOST)
    assert all("gpu-plugin" not in daemons for daemons in without.daemons.values())
    with_gpus = plan.render(ClusterConfig(nodes=2, gpus=2), LAYOUT, HOST)
    for node in ("node-1", "node-2"):
        assert "--count" in with_gpus.daemons[node]["gpu-plugin"]
        assert any("nvidia.com/gpu.product" in word for word in with_gpus.daemons[node]["kubelet"])
    assert "gpu-plugin" not in with_gpus.daemons["cp"]


@pytest.mark.parametrize(
    ("config", "layout", "host"),
    [
        (ClusterConfig(nodes=3), LAYOUT, HOST),
        (ClusterConfig(gpus=1), LAYOUT, HOST),
        (ClusterConfig(), Layout(Path("/var/lib/other")), HOST),
        (ClusterConfig(), LAYOUT, dataclasses.replace(HOST, sandbox_image="docker.io/quire/pause:2")),
    ],
)
def test_what_changes_the_cluster_changes_the_fingerprint(config: ClusterConfig, layout: Layout, host: Host) -> None:
    usual = plan.render(ClusterConfig(), LAYOUT, HOST)
    assert usual.fingerprint == plan.render(ClusterConfig(), LAYOUT, HOST).fingerprint
    assert plan.render(config, layout, host).fingerprint != usual.fingerprint


def test_another_home_or_clone_finds_the_same_cluster_and_another_version_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fingerprint(home: str, version: str) -> str:
        tools = Path(home) / ".cache/quire/tools" / f"kubernetes-{version}" / "bin"
        programs = {name: tools / name if name.startswith("kube") else path for name, path in HOST.programs.items()}
        return plan.render(ClusterConfig(gpus=1), LAYOUT, dataclasses.replace(HOST, programs=programs)).fingerprint

    first = fingerprint("/home/a", "0123")
    assert fingerprint("/home/a", "4567") != first
    monkeypatch.setattr(plan, "_OWN_PLACE", ("PYTHONPATH=/home/b/quire/e2e", "/home/b/quire/.venv/bin/python"))
    assert fingerprint("/home/b", "0123") == first


@pytest.mark.parametrize("nodes", [0, -1, MAX_NODES + 1])
def test_a_number_of_nodes_out_of_bounds_is_refused(nodes: int) -> None:
    with pytest.raises(UsageError, match=f"--nodes is {nodes}; it must be 1 to {MAX_NODES}"):
        ClusterConfig(nodes=nodes)


def test_two_nodes_hold_an_operator_a_router_and_three_runtimes_on_the_smallest_machine() -> None:
    for cpus, memory in ((1, 4 * GIB), (2, 8 * GIB), (2, 23 * GIB), (64, 512 * GIB)):
        capacity = configs.share(cpus, memory, 2)
        assert 2 * capacity.node_cpu_m >= 100 + 100 + 3 * 300 or cpus == 1
        assert 2 * capacity.node_memory <= memory
        assert capacity.node_memory // (700 << 20) >= 2
        assert capacity.node_cpu_m <= capacity.cpu_m


def test_ranges_stay_inside_198_18_and_slots_do_not_meet() -> None:
    everything = IPv4Network("198.18.0.0/15")
    networks = [Network(slot) for slot in range(SLOTS)]
    for network in networks:
        assert all(part.subnet_of(everything) for part in network.all)
        for index in range(1, MAX_NODES + 1):
            assert IPv4Network(network.pod_subnet(index)).subnet_of(network.pods)
            assert IPv4Address(network.address(index)) in network.infra
            assert len(network.veth(f"node-{index}")) <= 15
    ranges = [part for network in networks for part in network.all]
    assert not any(a.overlaps(b) for i, a in enumerate(ranges) for b in ranges[i + 1 :])


def test_sockets_fit_into_a_unix_address() -> None:
    layout = Layout(Path("/" + "d" * 47))
    deepest = layout.machine(f"node-{MAX_NODES}") / "kubelet" / "device-plugins" / "kubelet.sock"
    assert len(str(deepest)) <= 107
    with pytest.raises(UsageError, match="at most 48 characters"):
        Layout(Path("/" + "d" * 48))
    with pytest.raises(UsageError, match="absolute"):
        Layout(Path("relative"))


def test_the_environment_places_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CLUSTER_DIR", "/srv/q")
    monkeypatch.setenv("QUIRE_CLUSTER_SLOT", "1")
    assert Layout.from_environment() == Layout(Path("/srv/q"), 1)
    monkeypatch.setenv("QUIRE_CLUSTER_SLOT", "-1")
    with pytest.raises(UsageError, match="QUIRE_CLUSTER_SLOT is '-1'"):
        Layout.from_environment()


def test_dns_answers_outside_names_in_a_block_of_their_own() -> None:
    blocks = configs.corefile(LAYOUT).split("\n}\n")
    assert "kubernetes cluster.local" in blocks[0] and "template" not in blocks[0]
    assert "template" in blocks[1] and "kubernetes" not in blocks[1]
