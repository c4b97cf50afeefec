"""The local cluster leaves nothing behind, whatever happened to it. Runs beside a cluster in use: its own has other names and addresses.

Each test starts from wherever the one before left off and ends with nothing left, as `down` promises.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import archive, leaks, network, pause, processes, providers, state, wait
from cluster.caches import cache_root
from cluster.cgroups import MOUNTINFO, hierarchies
from cluster.client import Cluster
from cluster.errors import StateError
from cluster.layout import Layout
from cluster.local import LocalProvider
from cluster.plan import ClusterConfig
from cluster.progress import Progress

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="a local cluster needs root"),
    pytest.mark.timeout(600),
]

LAYOUT = Layout(Path("/var/lib/quire-cluster-test"), slot=1)
ONE_NODE = ClusterConfig(nodes=1)
HARNESS = str(Path(__file__).resolve().parent.parent)


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    if not isinstance(providers.choose(), LocalProvider):
        pytest.skip("this machine uses another provider; only the local one keeps promises about processes and mounts")
    local = LocalProvider(LAYOUT, Progress())
    local.down()  # of a run that was killed
    yield local
    local.down(purge=True)


def world() -> dict[str, set[str]]:
    """What a cluster could leave on the host. Without what other clusters and image builds come and go with."""
    routes = {f"{route['dst']} {route.get('dev')}" for route in network.host_routes()}
    return {
        "links": {link for link in network.host_links() if link.startswith(("quire1", "qv1-", "veth"))},
        "routes": {route for route in routes if "quire1" in route},
        "mounts": {line.split()[4] for line in MOUNTINFO.read_text().splitlines() if "quire-cluster-test" in line},
        "cgroups": {
            path.name
            for hierarchy in hierarchies().all
            for path in hierarchy.iterdir()
            if path.is_dir() and path.name == "quire1"
        },
        "folders": {path for path in ("/var/lib/kubelet", "/var/lib/cni", "/opt/containerd") if Path(path).exists()},
    }


def run_pod(cluster: Cluster, image: str = "", name: str = "probe") -> None:
    """A pod runs, of the sandbox image if of no other: containerd, the kubelet, the network plugin and the image store work."""
    if not image:
        known = cluster.kubectl_json("get", "nodes")["items"][0]["status"]["images"]
        image = next(entry["names"][0] for entry in known if "quire/pause" in entry["names"][0])
    container = {"name": "pause", "image": image, "imagePullPolicy": "Never"}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 1}
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}, namespace="default")
    cluster.wait(f"pod/{name}", "condition=Ready", namespace="default", deadline_s=60)


def index_archive(name: str, program: bytes) -> bytes:
    """An OCI archive as docker's buildx writes it: the name leads to an index of the image and an attestation."""
    blobs: dict[str, bytes] = {}

    def add(content: object) -> dict[str, object]:
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        key = hashlib.sha256(raw).hexdigest()
        blobs[key] = raw
        return {"digest": f"sha256:{key}", "size": len(raw)}

    def manifest(config: object, media_type: str, layer: bytes) -> dict[str, object]:
        layers = [{"mediaType": media_type, **add(layer)}]
        config_entry = {"mediaType": "application/vnd.oci.image.config.v1+json", **add(config)}
        document = {"schemaVersion": 2, "mediaType": archive.OCI_MANIFEST, "config": config_entry, "layers": layers}
        return {"mediaType": archive.OCI_MANIFEST, **add(document)}

    layer = archive._tar({"pause": program}, mode=0o755)
    roots = {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]}
    own = {"architecture": archive.architecture(), "os": "linux"}
    config = {**own, "config": {"Entrypoint": ["/pause"], "User": "65535:65535"}, "rootfs": roots}
    unknown = {"architecture": "unknown", "os": "unknown"}
    attestation = manifest(
        {**unknown, "rootfs": {"type": "layers", "diff_ids": []}}, "application/vnd.in-toto+json", b"{}"
    )
    image = manifest(config, "application/vnd.oci.image.layer.v1.tar", layer)
    index = {"schemaVersion": 2, "manifests": [attestation | {"platform": unknown}, image | {"platform": own}]}
    top = {"mediaType": "application/vnd.oci.image.index.v1+json", **add(index)}
    names = {"annotations": {"io.containerd.image.name": name}}
    files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
    files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [top | names]}).encode()
    return archive._tar(files | {f"blobs/sha256/{key}": raw for key, raw in blobs.items()}, mode=0o644)


def test_up_gives_a_cluster_that_runs_pods_and_a_second_up_reuses_it(provider: LocalProvider) -> None:
    before = world()
    provider.up(ONE_NODE)
    cluster = provider.connect()
    run_pod(cluster)
    assert {"processes", "cgroups", "links", "routes"} <= leaks.residue(LAYOUT).keys(), "the search sees what is there"
    running = state.load(LAYOUT.state)
    provider.up(ONE_NODE)
    assert state.load(LAYOUT.state) == running, "the same processes run"
    cluster.kubectl("get", "pod", "probe")
    provider.down()
    assert leaks.residue(LAYOUT) == {}
    assert world() == before
    provider.down()


def test_a_node_that_lost_its_first_process_is_gone_whole_and_up_repairs_it(provider: LocalProvider) -> None:
    provider.up(ONE_NODE)
    record = state.load(LAYOUT.state)
    assert record is not None
    node = record.machines["node-1"]
    processes.end(node.init)
    assert [name for name, process in node.daemons.items() if processes.alive(process)] == []
    report = provider.status()
    assert not report.healthy and "node-1 is DEAD" in report.text
    provider.up(ONE_NODE)
    run_pod(provider.connect())


def test_a_machine_comes_back_after_power_off_with_its_pods(provider: LocalProvider) -> None:
    provider.up(ONE_NODE)
    run_pod(provider.connect())
    record = state.load(LAYOUT.state)
    assert record is not None
    assert Path(f"/sys/class/net/{LAYOUT.network.bridge}/addr_assign_type").read_text() == "3\n"  # set: follows no link
    with Path(
        f"/proc/{record.machines['node-1'].init.pid}/ns/net"
    ).open():  # the kernel is slow to take the namespace apart
        provider.power_off("node-1")
        provider.boot("node-1")
    cluster = provider.connect()
    restarted = "jsonpath={.status.containerStatuses[0].restartCount}=1"
    cluster.wait("pod/probe", restarted, namespace="default", deadline_s=60)
    cluster.wait("pod/probe", "condition=Ready", namespace="default", deadline_s=60)
    provider.restart_daemon("cp", "apiserver")
    provider.connect().kubectl("get", "pod/probe", "-n", "default")  # at once: it is ready


@pytest.mark.parametrize(("machines", "daemons"), [(0, 0), (1, 0), (2, 1), (2, 3)])
def test_a_start_that_is_killed_half_way_leaves_nothing_after_down(
    provider: LocalProvider, machines: int, daemons: int
) -> None:
    provider.down()
    environment = os.environ | {
        "PYTHONPATH": HARNESS,
        "QUIRE_CLUSTER_DIR": str(LAYOUT.base),
        "QUIRE_CLUSTER_SLOT": str(LAYOUT.slot),
        "QUIRE_CLUSTER_PROVIDER": "local",
    }
    start = subprocess.Popen([sys.executable, "-m", "cluster", "up", "--nodes", "1"], env=environment)

    def look() -> str | None:
        record = state.load(LAYOUT.state)
        if record is None or len(record.machines) < machines:
            return "not that far yet"
        started = sum(len(machine.daemons) for machine in record.machines.values())
        return None if started >= daemons else f"{started} daemons are recorded"

    try:
        wait.until(f"a start with {machines} machines and {daemons} daemons", look, deadline_s=60, interval_s=0.002)
    finally:
        start.send_signal(signal.SIGKILL)
        start.wait(10)
    provider.down()
    assert leaks.residue(LAYOUT) == {}
    assert not LAYOUT.work.exists() and not LAYOUT.state.exists()


def test_another_home_folder_reuses_the_cluster_and_takes_its_programs_along(
    provider: LocalProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.up(ONE_NODE)
    started = state.load(LAYOUT.state)
    (tmp_path / "tools").symlink_to(cache_root() / "tools")
    with monkeypatch.context() as other:
        other.setenv("QUIRE_CACHE_DIR", str(tmp_path))
        provider.up(ONE_NODE)
    adopted = state.load(LAYOUT.state)
    assert started is not None and adopted is not None
    assert adopted.machines == started.machines, "the same processes run"
    assert adopted.programs["kubectl"].startswith(str(tmp_path))
    (tmp_path / "tools").unlink()  # the other user goes
    with pytest.raises(StateError, match="gone since the cluster was started; `make cluster-up`"):
        provider.connect()
    provider.up(ONE_NODE)
    run_pod(provider.connect())
    provider.restart_daemon("node-1", "kubelet")
    assert state.load(LAYOUT.state) != started, "a new kubelet"
    run_pod(provider.connect(), name="after-the-restart")


def test_an_image_behind_an_index_runs_where_it_is_linked_and_where_it_is_copied(
    provider: LocalProvider, tmp_path: Path
) -> None:
    provider.up(ONE_NODE)
    ref = "docker.io/quire/indexed:1"
    path = tmp_path / "indexed.tar"
    path.write_bytes(index_archive(ref, pause.ensure(LAYOUT.base / "pause").program.read_bytes()))
    provider.load([path])
    run_pod(provider.connect(), ref)
    images = provider.status().text.partition("ON NODES")[2]
    assert "node-1" in next(line for line in images.splitlines() if line.startswith("quire/indexed:1"))
    provider.down()
    provider.up(ONE_NODE)
    run_pod(provider.connect(), ref)


def test_up_after_a_killed_start_builds_a_working_cluster(provider: LocalProvider) -> None:
    provider.up(ONE_NODE)
    record = state.load(LAYOUT.state)
    assert record is not None
    record.phase = state.Phase.STARTING  # as a start leaves it that is killed in its last step
    record.save(LAYOUT.state)
    provider.up(ONE_NODE)
    run_pod(provider.connect())
