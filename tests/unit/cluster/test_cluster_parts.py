"""The smaller pure parts: cgroup mounts, routes, tools' keys, providers' choice, tables, processes."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import (
    cgroups,
    choice,
    client,
    kind,
    leaks,
    machine_init,
    network,
    processes,
    programs,
    progress,
    run,
    status,
    tools,
    wait,
)
from cluster.errors import CommandError, DeadlineError, PrerequisiteError, UsageError
from cluster.layout import Layout, Network
from cluster.plan import ClusterConfig
from cluster.processes import Process

V1 = """\
30 20 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:27 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"


def test_cgroup_hierarchies_are_what_is_mounted() -> None:
    hybrid = cgroups.parse_mounts(V1)
    assert hybrid.v1 == (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/memory"))
    assert hybrid.v2 is None, "beside version 1 the unified hierarchy has no controllers"
    assert hybrid.idle_v2 == Path("/sys/fs/cgroup/unified")
    assert cgroups.parse_mounts(V2) == cgroups.Hierarchies((), Path("/sys/fs/cgroup"))


def test_version_2_hands_controllers_down_and_keeps_processes_in_a_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids rdma\n")
    monkeypatch.setattr(cgroups, "hierarchies", lambda: cgroups.Hierarchies((), tmp_path))
    cgroups.create("quire0", "node-1")
    for folder in (tmp_path, tmp_path / "quire0", tmp_path / "quire0" / "node-1"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpuset +cpu +io +memory +pids"
    assert cgroups.attach_files("quire0", "node-1") == (tmp_path / "quire0/node-1/sys/cgroup.procs",)
    (tmp_path / "cgroup.controllers").write_text("cpu\n")
    with pytest.raises(PrerequisiteError, match="cpuset, memory, pids"):
        cgroups.create("quire0", "node-1")


def test_foreign_routes_in_the_range_are_named_and_own_ones_are_not() -> None:
    routes = [
        {"dst": "default", "dev": "eth0"},
        {"dst": "10.0.0.0/8", "dev": "eth0"},
        {"dst": "198.18.5.7", "dev": "tun0"},
        {"dst": "198.18.1.0/24", "dev": "quire0"},
        {"dst": "198.16.0.0/12", "dev": "vpn"},
    ]
    assert network.conflicts(Network(), routes) == ["198.18.5.7 via tun0", "198.16.0.0/12 via vpn"]
    assert network.owned_routes(Network(), routes) == ["198.18.1.0/24"]
    assert network.owned_links(Network(), ["lo", "quire0", "qv0-cp", "qv1-cp", "quire1"]) == ["quire0", "qv0-cp"]


def test_a_machine_has_the_same_hardware_address_at_each_boot() -> None:
    assert network.hardware_address(Network(slot=1).address(2)) == "02:00:c6:12:ff:0c"


def test_a_tools_key_follows_its_pins_and_flags() -> None:
    key = tools.cache_key(tools.KUBERNETES, b"mod", b"sum")
    assert key == tools.cache_key(tools.KUBERNETES, b"mod", b"sum")
    assert key != tools.cache_key(tools.KUBERNETES, b"mods", b"um")
    assert key != tools.cache_key(tools.HELM, b"mod", b"sum")


@pytest.mark.parametrize("tool", (*tools.ALL, tools.HELM_UNITTEST, tools.HELM_DOCS), ids=lambda tool: tool.name)
def test_a_tools_version_is_the_one_its_module_pins(tool: tools.Tool) -> None:
    source = tools.SOURCES / tool.name
    assert f"{tool.module} {tool.version}" in (source / "go.mod").read_text()
    assert f"{tool.module} {tool.version} h1:" in (source / "go.sum").read_text()
    code = "".join(path.read_text() for path in source.glob("*.go"))
    assert all(f'"{package}"' in code or package == f"quire.dev/e2e/tools/{tool.name}" for package in tool.packages)


def test_tools_are_built_without_a_single_package_installed(tmp_path: Path) -> None:
    environment = {
        "PYTHONPATH": str(tools.SOURCES.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
        "QUIRE_CACHE_DIR": str(tmp_path),
        "QUIRE_CLUSTER_PROVIDER": "local",
        "PATH": "/nowhere",
    }
    command = [sys.executable, "-S", "-W", "error", "-m", "cluster.programs"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("cluster: error: the Go toolchain was not found") and done.stderr.count("\n") == 1


def fake_go(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "go"
    program.write_text(f"#!/bin/sh\n[ $1 = env ] && {version}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize("version", ["echo go1.24.1", "{ echo 'go.mod requires go >= 1.26.0' >&2; exit 1; }"])
def test_a_go_that_is_too_old_is_refused_before_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    fake_go(tmp_path, version, monkeypatch)
    with pytest.raises(PrerequisiteError, match=r"(?s)helm v3.22.0 .*needs Go 1\.26\.0 .*GOTOOLCHAIN=auto"):
        tools.ensure(progress.Progress(), (tools.HELM,), tmp_path / "cache")


def test_go_versions_compare_as_numbers() -> None:
    assert tools.go_version("go1.26.10\n") > tools.go_version("1.26.9") >= tools.go_version("1.26.0")
    assert tools.go_version("devel +1234") == ()
    for tool in (*tools.ALL, *tools.CHART, tools.KUBECTL):
        assert tools.go_version(tools.needed_go((tool.sources / "go.mod").read_text())) >= (1, 24)


OWN = {Path("/var/lib/quire-cluster/run/admin.conf"): "local", Path("/c/kind/kubeconfig"): "kind"}


@pytest.mark.parametrize(
    ("environment", "kind_works", "name"),
    [
        ({}, False, "local"),
        ({}, True, "kind"),
        ({"KUBECONFIG": ""}, False, "local"),
        ({"KUBECONFIG": "/home/u/.kube/config"}, None, "existing"),
        ({"KUBECONFIG": "/var/lib/quire-cluster/run/admin.conf"}, None, "local"),
        ({"KUBECONFIG": "/c/kind/kubeconfig"}, None, "kind"),
        ({"KUBECONFIG": "/x", "QUIRE_CLUSTER_PROVIDER": "local"}, None, "local"),
    ],
)
def test_the_provider_follows_from_what_is_there(
    environment: dict[str, str], kind_works: bool | None, name: str
) -> None:
    def ask() -> bool:
        assert kind_works is not None, "an engine is asked only where nothing else decides"
        return kind_works

    assert choice.decide(environment, OWN, ask) == name


def test_an_unknown_provider_is_refused() -> None:
    with pytest.raises(UsageError, match="QUIRE_CLUSTER_PROVIDER is 'k3s'; it must be one of existing, kind, local"):
        choice.decide({"QUIRE_CLUSTER_PROVIDER": "k3s"}, OWN, lambda: False)


def test_a_cluster_of_somebody_else_needs_kubectl_and_helm_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kubectl", "helm"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    expected = {"kubectl": tmp_path / "kubectl", "helm": tmp_path / "helm"}
    assert programs.ensure("existing", progress.Progress()) == programs.ensure("kind", progress.Progress()) == expected
    with pytest.raises(PrerequisiteError, match="Go toolchain was not found"):
        programs.ensure("local", progress.Progress())


def test_a_running_cluster_of_this_harness_is_found_by_its_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_CLUSTER_PROVIDER", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(Layout.from_environment().kubeconfig))
    assert choice.provider() == "local"


def test_kind_gets_the_same_ranges() -> None:
    text = kind.cluster_config(ClusterConfig(nodes=2))
    assert text.count('"worker"') == 2
    assert "198.18.0.0/17" in text and "enable-aggregator-routing" in text


def test_a_process_is_its_pid_and_its_start() -> None:
    me = processes.identify(os.getpid())
    assert me is not None and processes.alive(me)
    assert not processes.alive(Process(me.pid, me.start - 1))
    processes.end(Process(me.pid, me.start - 1))  # an earlier holder of this pid: nothing may happen to us


def test_ending_a_process_waits_for_its_end_and_is_idempotent() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        process = processes.identify(child.pid)
        assert process is not None
        processes.end(process)
        assert not processes.alive(process)
        assert child.wait(5) == -9
        processes.end(process)
    finally:
        child.kill()
        child.wait()


def test_a_detached_process_is_nobodys_child_and_writes_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "daemon.log"
    process = processes.detach(["sh", "-c", "echo here; exec sleep 60"], log)
    try:
        assert process.pid not in processes.children(os.getpid())
        wait.until("its line", lambda: None if log.read_text() == "here\n" else "no line", deadline_s=10)
    finally:
        processes.end(process)


def test_a_wait_that_runs_out_says_for_what_and_shows_the_log(tmp_path: Path) -> None:
    log = tmp_path / "kubelet.log"
    log.write_text("first\nfailed to find cgroup mounts\n")
    with pytest.raises(
        DeadlineError, match=r"(?s)node-1: Ready did not happen within 0 s: not yet.*kubelet\.log.*cgroup mounts"
    ):
        wait.until("node-1: Ready", lambda: "not yet", deadline_s=0, log=log)


def test_a_failing_program_is_quoted() -> None:
    with pytest.raises(CommandError, match=r"(?s)exit status 3.*broken pipe dream"):
        run.run(["sh", "-c", "echo broken pipe dream >&2; exit 3"])
    with pytest.raises(DeadlineError, match="did not end within"):
        run.run(["sleep", "30"], deadline_s=0.05)
    with pytest.raises(PrerequisiteError, match="no-such-program was not found"):
        run.run(["no-such-program"])


def test_progress_names_the_step_and_its_failure() -> None:
    out = io.StringIO()
    report = progress.Progress(out, clock=iter([0.0, 1.0, 3.5, 4.0, 5.0, 6.0, 7.0]).__next__)
    with report.step("certificates"):
        pass
    with pytest.raises(ValueError), report.step("machines"):
        raise ValueError
    assert "certificates (2.5 s)" in out.getvalue()
    assert "machines: FAILED" in out.getvalue()


def test_a_machine_lets_go_of_other_peoples_container_mounts_but_not_of_its_own_ground() -> None:
    mounts = (
        "20 1 8:1 / / rw - overlay overlay rw\n"
        "30 20 0:9 / /srv rw - overlay overlay rw\n"
        "31 20 0:10 / /srv/cluster rw - overlay overlay rw\n"
        "40 20 0:11 / /tmp/build/merged rw - overlay overlay rw\n"
        "41 40 0:12 / /tmp/build/merged/inner rw - overlay overlay rw\n"
        "50 20 0:13 / /home rw - ext4 /dev/sda1 rw\n"
    )
    assert machine_init.foreign_mounts(mounts, "/srv/cluster") == ["/tmp/build/merged/inner", "/tmp/build/merged"]


def test_a_machines_mount_namespace_is_recognised_on_any_file_system() -> None:
    layout = Layout(Path("/mnt/fast/quire"))
    line = "90 20 8:1 {} /var/lib/kubelet rw shared:1 - ext4 /dev/sda1 rw"
    assert leaks._of_machine(line.format("/quire/run/node-1/kubelet"), layout.work), "base on a mounted file system"
    assert leaks._of_machine(line.format("/mnt/fast/quire/run/node-1/kubelet"), layout.work)
    assert not leaks._of_machine(line.format("/other/run/node-1/kubelet"), layout.work)
    assert not leaks._of_machine("20 1 8:1 / / rw - ext4 /dev/sda1 rw", layout.work)


def test_a_watch_is_decoded_across_cut_objects_and_characters() -> None:
    text = '{"type": "ADDED", "object": {"a": "ä"}}\n{"type": "DELETED", "object": {}}\n'.encode()
    events = list(client.decode_events(text[index : index + 1] for index in range(len(text))))
    assert events == [client.Event("ADDED", {"a": "ä"}), client.Event("DELETED", {})]


def test_shell_exports_put_the_tools_first_and_keep_proxies_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("NO_PROXY", "localhost")
    cluster = client.Cluster("local", Path("/k/admin.conf"), Path("/t o/kubectl"), Path("/h/helm"), direct=True)
    assert client.shell_exports(cluster).splitlines() == [
        "export KUBECONFIG=/k/admin.conf",
        "export NO_PROXY=localhost,198.18.0.0/15",
        "export no_proxy=localhost,198.18.0.0/15",
        "export PATH='/t o:/h':\"$PATH\"",
    ]
    assert cluster.environment["PATH"] == "/t o:/h:/usr/bin"


def test_the_table_shows_dead_daemons() -> None:
    row = status.MachineStatus(
        "node-1", "198.18.254.11", "Ready", 84_000_000, 3, "1500m cpu", [("kubelet", True), ("kube-proxy", False)]
    )
    text = status.render(
        "local cluster", [row], [status.ImageStatus("docker.io/quire/runtime:dev-1", 1_200_000_000, ["node-1"])]
    )
    assert "kubelet kube-proxy(DEAD)" in text
    assert "84 MB" in text and "1.2 GB" in text and "quire/runtime:dev-1" in text and "docker.io" not in text
    assert status.duration(59) == "59 s" and status.duration(3700) == "1 h 1 min"


def test_the_command_line_refuses_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    from cluster.__main__ import main

    assert main(["up", "--nodes", "0"]) == 1
    assert capsys.readouterr().err == "cluster: error: --nodes is 0; it must be 1 to 20\n"


@pytest.mark.skipif(sys.platform != "linux", reason="the harness is for Linux")
def test_the_machines_init_refuses_to_act_unrecorded(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)  # the harness died before it recorded the process
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", machine_init.__file__, "{}", str(read_end)],
            pass_fds=[read_end],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        os.close(read_end)
    assert done.returncode == 1
    assert "before this machine was recorded" in done.stderr
