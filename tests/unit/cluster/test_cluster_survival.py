"""What a slow, hostile or dying machine does to the harness: its waits hold, and its errors stay one sentence."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster import archive, cgroups, client, kind, leaks, local, local_status, machine, network, processes, store, wait
from cluster.api import ApiClient
from cluster.errors import CommandError, DeadlineError, HarnessError, PrerequisiteError, UsageError
from cluster.layout import Layout
from cluster.plan import ClusterConfig, Plan
from cluster.processes import Process
from cluster.progress import Progress
from cluster.state import ClusterState, MachineState, Phase, Verdict
from cluster.store import Ctr, Seed, SeedImage

E2E = Path(__file__).resolve().parents[3] / "e2e"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Write a shell script that is found before any other program of its name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def write(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


# --- containerd's stores ---------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("ctr") is None, reason="needs containerd's command line")
def test_a_containerd_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    said = Ctr(tmp_path / "no.sock").answers()
    assert said is not None and "no.sock" in said


def test_a_containerd_that_hangs_is_waited_for(
    programs: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "DAEMON_ENV", {"PATH": str(programs("ctr", "exec sleep 60").parent) + ":/usr/bin:/bin"})
    monkeypatch.setattr(store, "ANSWER_DEADLINE_S", 0.2)
    assert "did not end within" in str(Ctr(tmp_path / "c.sock").answers())


def image(*layers: str) -> SeedImage:
    return SeedImage("identity", "sha256:m", archive.OCI_MANIFEST, list(layers), ["m", "c"], 0.0)


def test_a_forgotten_image_takes_only_its_own_layers_along() -> None:
    seed = Seed({"q/a:1": image("base", "one"), "q/a:2": image("base", "two")}, {"base": "1", "one": "2", "two": "3"})
    seed.forget("q/a:1")
    assert list(seed.images) == ["q/a:2"]
    assert seed.folders == {"base": "1", "two": "3"}


def test_an_image_that_is_built_anew_under_its_name_leaves_no_layers_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """containerd collects them, and a node that is to link their folders does not start."""
    seed = Seed({"q/a:1": image("base", "one")}, {"base": "1", "one": "2"})
    seed.put("q/a:1", image("base", "other"), {"base": "1", "other": "5"})
    assert seed.folders == {"base": "1", "other": "5"}
    stale = Seed({"q/a:1": image("base")}, {"base": "1", "one": "2"})  # as an earlier version wrote it
    monkeypatch.setattr("cluster.layout.MAX_BASE_LEN", 500)
    layout = Layout(tmp_path)
    layout.seed.mkdir()
    stale.save(layout.seed / "seed.json")
    assert store.read_seed(layout).folders == {"base": "1"}


class DyingCtr:
    """A seed store's containerd whose caller is killed while it removes an image."""

    def __init__(self, *refs: str) -> None:
        self.refs = dict.fromkeys(refs, "sha256:m")
        self.removed: list[str] = []

    def __call__(self, *arguments: str, **_: object) -> str:
        if arguments[:2] == ("images", "remove"):
            self.removed.append(arguments[-1])
            if arguments[-1] == "docker.io/q/a:1":
                raise KeyboardInterrupt
        return ""

    def images(self) -> dict[str, str]:
        return self.refs


def test_a_killed_load_leaves_an_index_of_what_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.layout.MAX_BASE_LEN", 500)
    layout = Layout(tmp_path)
    layout.seed.mkdir()
    old = {f"docker.io/q/a:{number}": image("base", f"top {number}") for number in (1, 2)}
    for number, known in enumerate(old.values()):
        known.loaded = float(number)
    Seed(old, {"base": "1", "top 1": "2", "top 2": "3"}).save(layout.seed / "seed.json")
    path = tmp_path / "new.tar"
    path.write_bytes(archive.pack("q/a:3", {"p": b"x"}, "/p"))
    ctr = DyingCtr(*old, "docker.io/q/stray:1")
    monkeypatch.setattr(store, "_seed_daemon", lambda _: contextlib.nullcontext(ctr))

    def fake_import(ctr: object, layout: Layout, item: archive.Archive, seed: Seed) -> None:
        assert ctr.removed == ["docker.io/q/stray:1"], "what an earlier load left goes first"  # type: ignore[attr-defined]
        seed.images["docker.io/q/a:3"] = image("base")
        seed.images["docker.io/q/a:3"].loaded = 9.0

    monkeypatch.setattr(store, "_import", fake_import)
    with pytest.raises(KeyboardInterrupt):
        store.load_into_seed(layout, [archive.read(path)], Progress())
    left = store.read_seed(layout)
    assert sorted(left.images) == ["docker.io/q/a:2", "docker.io/q/a:3"]
    assert left.folders == {"base": "1", "top 2": "3"}


def test_an_image_behind_an_index_is_known_by_both_digests_and_an_old_seed_is_still_read(tmp_path: Path) -> None:
    behind = image("base")
    behind.indexes.append("i")
    assert behind.targets == {"sha256:m", "sha256:i"}
    layout = Layout(Path("/q"))
    document = {"identity": "x", "digest": "sha256:m", "media_type": "t", "layers": [], "blobs": [], "loaded": 1.0}
    assert SeedImage(**document).targets == {"sha256:m"}  # type: ignore[arg-type]
    assert store.read_seed(layout) == Seed()


def test_an_index_gives_this_machines_image_or_says_what_it_is_for() -> None:
    attestation = {"digest": "sha256:a", "platform": {"architecture": "unknown", "os": "unknown"}}
    own = {"digest": "sha256:b", "platform": {"architecture": archive.architecture(), "os": "linux"}}
    assert archive.own_manifest({"manifests": [attestation, own]}, Path("x.tar")) == "sha256:b"
    assert archive.own_manifest({"manifests": [{"digest": "sha256:c"}]}, Path("x.tar")) == "sha256:c"
    with pytest.raises(UsageError, match=r"x\.tar is for unknown; this machine needs"):
        archive.own_manifest({"manifests": [attestation]}, Path("x.tar"))


def test_a_stray_file_in_a_parked_store_does_not_end_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.layout.MAX_BASE_LEN", 500)
    layout = Layout(tmp_path)
    parked = layout.parked / "node-1"
    (parked / store.CONTENT).mkdir(parents=True)
    (parked / "layers.json").write_text("{}")
    (parked / "layers.tmp").write_text("cut off")
    (parked / store.CONTENT / "note").write_text("")
    (parked / "io.containerd.runtime.v2.task").mkdir()
    layout.machine("node-1").mkdir(parents=True)
    store.populate(layout, "node-1")
    assert not [path for path in layout.store("node-1").rglob("*") if path.name in ("layers.tmp", "note")]


@pytest.mark.parametrize("raw", [b"{", b"[1]", b"7", b'"text"', b"\xff"])
def test_a_manifest_that_cannot_be_understood_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "odd.tar"
    path.write_bytes(archive._tar({"manifest.json": raw}, mode=0o644))
    with pytest.raises(UsageError, match=r"odd\.tar (cannot be read|holds no image)"):
        archive.read(path)


def test_a_truncated_compressed_archive_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(archive.pack("quire/p:1", {"p": os.urandom(50_000)}, "/p"))
    for share in (0.3, 0.6, 0.9):
        path = tmp_path / "cut.tar.gz"
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(UsageError, match=r"cut\.tar\.gz cannot be read"):
            archive.read(path)


# --- the API server --------------------------------------------------------------------------------------------------


class Flaky:
    """An API client whose server does not answer the first times."""

    def __init__(self, failures: int) -> None:
        self.left = failures

    look = ApiClient.look

    def not_ready(self) -> str | None:
        return None

    def nodes_not_ready(self, count: int) -> str | None:
        self.left -= 1
        if self.left >= 0:
            raise (TimeoutError("timed out") if self.left % 2 else CommandError("GET /api/v1/nodes answers 500"))
        return None

    def get(self, path: str) -> dict[str, object]:
        raise CommandError(f"GET {path} answers 500")


def record(**changes: object) -> ClusterState:
    me = processes.identify(os.getpid())
    assert me is not None
    values = {"boot": processes.boot_id(), "fingerprint": "f", "nodes": 1, "gpus": 0, "phase": Phase.READY}
    machines = {"cp": MachineState(me, {"apiserver": me}), "node-1": MachineState(me, {"containerd": me})}
    return ClusterState(**(values | {"machines": machines} | changes))  # type: ignore[arg-type]


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """A layout with the record of a cluster whose processes all live."""
    monkeypatch.setattr("cluster.layout.MAX_BASE_LEN", 500)
    layout = Layout(tmp_path, slot=1)
    layout.work.mkdir()
    record().save(layout.state)
    monkeypatch.setattr(leaks, "residue", lambda layout: {})
    return layout


class Fixed(Plan):
    """A plan with the fingerprint of the record."""

    fingerprint = "f"  # type: ignore[assignment]


def test_a_server_that_stutters_is_no_reason_to_destroy_a_cluster(
    running: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "ApiClient", lambda *_: Flaky(failures=3))
    provider = local.LocalProvider(running, Progress())
    assert provider._judge(Fixed(ClusterConfig(1), {}, {}))[0] is Verdict.REUSE
    monkeypatch.setattr(local, "HEALTH_DEADLINE_S", 0.3)
    monkeypatch.setattr(local, "ApiClient", lambda *_: Flaky(failures=10**6))
    verdict, why = provider._judge(Fixed(ClusterConfig(1), {}, {}))
    assert verdict is Verdict.REBUILD
    assert "health of the running cluster did not happen" in why


def test_status_shows_its_table_although_nobody_answers(running: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_status, "ApiClient", lambda *_: Flaky(0))
    report = local_status.collect(running, record())
    assert not report.healthy
    assert (
        "answers 500" in report.text and "MACHINE" in report.text and "node-1/containerd does not answer" in report.text
    )


@pytest.mark.parametrize("changes", [{"boot": "before"}, {"machines": {"node-1": MachineState(Process(1, 1))}}])
def test_images_are_kept_for_later_where_the_nodes_are_dead(
    running: Layout, monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    record(**changes).save(running.state)
    path = running.base / "p.tar"
    path.write_bytes(archive.pack("quire/p:1", {"p": b"x"}, "/p"))
    monkeypatch.setattr(store, "load_into_seed", lambda *_: Seed())
    local.LocalProvider(running, Progress())._load([archive.read(path)])
    said = capsys.readouterr().err
    assert "node-1" in said and "do not run; docker.io/quire/p:1 will be on the nodes" in said


# --- the machine -----------------------------------------------------------------------------------------------------


def test_a_base_that_is_a_mount_of_its_own_is_nothing_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(
        "".join(f"30 20 8:1 / {point} rw - ext4 /dev/sdb rw\n" for point in ("/srv/q", "/srv/q/run/x", "/srv/qq"))
    )
    monkeypatch.setattr(cgroups, "MOUNTINFO", mountinfo)
    assert leaks.mounts_below(Path("/srv/q")) == ["/srv/q/run/x"]


def test_a_kubelet_folder_on_a_disk_of_its_own_is_no_machine() -> None:
    line = "90 20 8:1 {} /var/lib/kubelet rw shared:1 - ext4 /dev/sda1 rw"
    work = Path("/var/lib/quire-cluster/run")
    assert not leaks._of_machine(line.format("/kubelet"), work)
    assert not leaks._of_machine(line.format("/"), work)
    assert leaks._of_machine(line.format("/run/cp/kubelet"), work)


def test_a_cgroup_that_goes_while_it_is_read_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: cgroups.Hierarchies((), tmp_path))
    (tmp_path / "quire0" / "gone").mkdir(parents=True)
    (tmp_path / "quire0" / "gone" / "cgroup.procs").symlink_to("nothing")
    (tmp_path / "quire0" / "cgroup.procs").write_text("7\n8\n")
    assert cgroups.processes("quire0") == {7, 8}


class Kernel:
    """The rule of cgroup version 2 that a group with processes hands no controllers down, on plain files."""

    def __init__(self, root: Path, stuck: bool) -> None:
        self.procs, self.stuck, self.real = root / "cgroup.procs", stuck, Path.write_text

    def write(self, path: Path, text: str) -> int:
        procs = path.parent / "cgroup.procs"
        if path.name == "cgroup.subtree_control" and procs.exists() and procs.read_text().split():
            raise OSError(errno.EBUSY, "Device or resource busy")
        if path.name == "cgroup.procs" and path != self.procs:
            if self.stuck:
                raise OSError(errno.EPERM, "Operation not permitted")
            left = [pid for pid in self.procs.read_text().split() if pid != text]
            self.real(self.procs, "\n".join(left))
        return self.real(path, text)


@pytest.mark.parametrize("stuck", [False, True])
def test_processes_in_a_containers_own_root_move_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stuck: bool
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory pids")
    (tmp_path / "cgroup.procs").write_text("1\n17\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: cgroups.Hierarchies((), tmp_path))
    kernel = Kernel(tmp_path, stuck)
    monkeypatch.setattr(Path, "write_text", lambda path, text: kernel.write(path, text))
    if stuck:
        with pytest.raises(PrerequisiteError, match="it holds processes that cannot be moved"):
            cgroups.create("quire0", "cp")
    else:
        cgroups.create("quire0", "cp")
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"
        assert (tmp_path / "quire0/cp/sys").is_dir()


@pytest.mark.parametrize(
    ("call_iptables", "rules", "refused"),
    [
        ("1\n", "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n", True),
        ("0\n", "-P FORWARD DROP\n", False),
        ("1\n", "-P FORWARD ACCEPT\n-A FORWARD -j X\n", False),
    ],
)
def test_a_firewall_that_parts_the_nodes_is_named(call_iptables: str, rules: str, refused: bool) -> None:
    problem = network.firewall_problem(call_iptables, rules)
    assert (problem is not None) is refused
    assert not refused or "sysctl -w net.bridge.bridge-nf-call-iptables=0" in str(problem)


def test_mount_points_are_named_before_they_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, missing = tmp_path / "here", tmp_path / "missing"
    here.mkdir()
    monkeypatch.setattr(machine, "BINDS", {"a": str(here), "b": str(missing)})
    assert machine.missing_mount_points() == [str(missing)]
    assert not missing.exists()


@pytest.mark.parametrize("path", ["/nowhere", "{folder}"])
def test_a_daemon_that_cannot_be_started_is_one_clear_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "setsid").symlink_to(shutil.which("setsid") or "/usr/bin/setsid")  # and no sh
    environment = {"PATH": path.format(folder=tmp_path)}
    with pytest.raises(HarnessError, match="`kubelet --config=x` could not be started"):
        processes.detach(["kubelet", "--config=x"], tmp_path / "log", env=environment)


# --- programs and signals --------------------------------------------------------------------------------------------


def cluster(kubectl: Path) -> client.Cluster:
    return client.Cluster("existing", Path("/k"), kubectl, Path("/h"), direct=False)


def test_a_tunnel_that_never_opens_is_given_up(
    programs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "TUNNEL_DEADLINE_S", 0.3)
    with (
        pytest.raises(DeadlineError, match="opening of a tunnel"),
        cluster(programs("kubectl", "exec sleep 60")).reach("n", "s", 80),
    ):
        pass
    refusing = programs("kubectl", "echo 'error: no such service' >&2; exit 1")
    with (
        pytest.raises(CommandError, match="opened no tunnel: error: no such service"),
        cluster(refusing).reach("n", "s", 80),
    ):
        pass


def test_a_tunnel_goes_on_however_much_it_says(programs: Callable[[str, str], Path], tmp_path: Path) -> None:
    done = tmp_path / "done"
    lines = 'i=0; while [ $i -lt 4000 ]; do echo "Handling connection for 4711"; i=$((i + 1)); done'
    kubectl = programs("kubectl", f"echo 'Forwarding from 127.0.0.1:4711 -> 80'; {lines}; : > {done}; exec sleep 60")
    with cluster(kubectl).reach("n", "s", 80) as url:
        assert url == "http://127.0.0.1:4711"
        wait.until("all it has to say", lambda: None if done.exists() else "it is blocked", deadline_s=20)


def test_kubectls_own_timeout_is_never_cut_short(
    programs: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.own_timeout(["wait", "pod/a", "--timeout=180s"]) == 180
    assert client.own_timeout(["get", "pods"]) == 0
    seen: list[float] = []
    monkeypatch.setattr(client, "run", lambda *_, deadline_s, **__: seen.append(deadline_s) or "")
    cluster(Path("kubectl")).kubectl("delete", "pod/a", "--timeout=60s")
    cluster(Path("kubectl")).kubectl("get", "pods")
    assert seen == [70.0, 60.0]


@pytest.mark.parametrize(("ready", "created"), [("exit 0", False), ("echo 'not ready' >&2; exit 1", True)])
def test_a_kind_cluster_is_reused_only_when_its_nodes_are_ready(
    programs: Callable[[str, str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ready: str,
    created: bool,
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    calls = tmp_path / "calls"
    listing = f'[ -e {tmp_path}/deleted ] || case "$2" in clusters) echo quire ;; nodes) echo a b c ;; esac'
    programs("kind", f'echo "$1" >> {calls}; case "$1" in get) {listing} ;; delete) : > {tmp_path}/deleted ;; esac')
    programs("kubectl", ready)
    programs("helm", "exit 0")
    kind.KindProvider(Progress()).up(ClusterConfig(nodes=2))
    assert ("delete" in calls.read_text().split(), "create" in calls.read_text().split()) == (created, created)


INTERRUPTED = """
import pathlib, sys, time
from cluster import interrupt
interrupt.install()
mark = pathlib.Path(sys.argv[1])
try:
    mark.touch()
    time.sleep(600)
except KeyboardInterrupt:
    mark.unlink()
    while not mark.exists():  # cleaning up; a second signal does not cut it off
        time.sleep(0.01)
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_a_command_in_order_and_only_once(tmp_path: Path, number: signal.Signals) -> None:
    mark = tmp_path / "mark"
    # Where the tests run in the background or under nohup, what they start ignores INT or HUP.
    command = ["env", "--default-signal=INT,HUP,TERM", sys.executable, "-c", INTERRUPTED, str(mark)]
    child = subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(E2E)})
    try:
        wait.until("it runs", lambda: None if mark.exists() else "no mark", deadline_s=30)
        child.send_signal(number)
        wait.until("it cleans up", lambda: "not yet" if mark.exists() else None, deadline_s=30)
        child.send_signal(signal.SIGTERM)
        mark.touch()
        assert child.wait(30) == 130
    finally:
        child.kill()
        child.wait()


STARTED = """
import sys
from cluster import interrupt
from stack.progress import started
interrupt.install()
with started([sys.executable, "-c", sys.argv[1], sys.argv[2]]) as [child]:
    child.wait()
"""


def test_a_command_takes_down_what_it_started_before_it_ends(tmp_path: Path) -> None:
    mark, inner = tmp_path / "mark", INTERRUPTED.replace("while not mark.exists()", "while False")
    parent = subprocess.Popen(
        [sys.executable, "-c", STARTED, inner, str(mark)],
        env=os.environ | {"PYTHONPATH": str(E2E)},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait.until("the inner one runs", lambda: None if mark.exists() else "no mark", deadline_s=30)
        parent.terminate()
        assert parent.wait(30) != 0
        assert not mark.exists(), "the inner one cleaned up"
    finally:
        parent.kill()
        parent.wait()


def test_no_message_and_no_page_names_a_command_that_fails_as_typed() -> None:
    """Without the virtual environment and PYTHONPATH `python -m cluster` is nothing; `make` targets are what people type."""
    root = E2E.parent
    places = [*E2E.glob("cluster/*.py"), *E2E.glob("stack/*.py"), *root.glob("docs/*.md"), root / "README.md"]
    wrong = ("`python -m cluster ", "(python -m cluster ", "PYTHONPATH=e2e python ")
    found = [str(path) for path in places if any(command in path.read_text() for command in wrong)]
    assert found == []


def test_a_seeds_index_is_json_that_a_reader_sees_whole(tmp_path: Path) -> None:
    path = tmp_path / "seed.json"
    Seed({"q/a:1": image("base")}, {"base": "1"}).save(path)
    assert json.loads(path.read_text())["images"]["q/a:1"]["indexes"] == []
