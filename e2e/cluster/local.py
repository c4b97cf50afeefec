"""The local provider: a cluster of real components on this machine, without a container engine.

`up` reuses a healthy cluster, and otherwise tears down what it finds and builds anew; `down` ends exactly what is on
record and then looks for residue. Both hold the lock, so they exclude each other across processes.
"""

import datetime
import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster import (
    archive,
    audit,
    certs,
    cgroups,
    leaks,
    machine,
    network,
    pause,
    prerequisites,
    processes,
    state,
    store,
    tools,
    wait,
)
from cluster.api import ApiClient
from cluster.archive import Archive
from cluster.caches import exclusive
from cluster.client import Cluster
from cluster.errors import DeadlineError, HarnessError, PrerequisiteError, StateError
from cluster.layout import Layout, Machine
from cluster.local_status import collect
from cluster.plan import ClusterConfig, Host, Plan, render
from cluster.processes import Process
from cluster.progress import Progress
from cluster.run import run
from cluster.state import ClusterState, MachineState, Phase, Verdict
from cluster.status import Report

READY_DEADLINE_S = 240.0
"""For the API server, and then for the nodes: 5 s on a quiet machine, 15 s on a busy one, over 120 s at a load of 35 per core."""
HEALTH_DEADLINE_S = 30.0
"""For a cluster that runs to say that it is well, before it is torn down and built anew."""

_DNS_RULES = (
    {"apiGroups": [""], "resources": ["services", "namespaces", "pods"], "verbs": ["list", "watch"]},
    {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
)


class LocalProvider:
    """Implements `providers.Provider`."""

    name = "local"

    def __init__(self, layout: Layout, progress: Progress) -> None:
        self._layout = layout
        self._progress = progress

    # --- up ----------------------------------------------------------------------------------------------------------

    def up(self, config: ClusterConfig, images: Iterable[Path] = ()) -> None:
        """Bring the wanted cluster up; returns when its nodes are Ready and pods can be created."""
        archives = [archive.read(path) for path in images]
        host = self._prepare()
        plan = render(config, self._layout, host)
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            verdict, reason = self._judge(plan)
            if verdict is Verdict.REUSE:
                self._progress.say(f"reuse the running cluster of {config.nodes} nodes")
                self._adopt(plan, host)
                self._load(archives)
                return
            if verdict is Verdict.REBUILD:
                self._progress.say(f"tear down first: {reason}")
                self._down()
            sandbox = archive.read(pause.ensure(self._layout.base / "pause").archive)
            seed = store.load_into_seed(self._layout, [sandbox, *archives], self._progress)
            self._progress.say(f"seed store: {len(seed.images)} images")
            try:
                self._build(plan, host)
            except BaseException:
                self._progress.say("the start failed; tearing down")
                self._down()
                raise

    def prerequisites(self) -> tuple[str, ...]:
        return prerequisites.ensure(prerequisites.CLUSTER, self._progress)

    def _prepare(self) -> Host:
        """Everything that must be on the machine before a cluster can start."""
        if os.geteuid() != 0:
            raise PrerequisiteError(
                "a local cluster needs root: run as root, or set KUBECONFIG to use an existing cluster"
            )
        self.prerequisites()
        programs = tools.ensure(self._progress)
        for program in ("etcd", "containerd"):
            programs[program] = Path(shutil.which(program) or program)
        cni_bin = prerequisites.cni_dir()
        if cni_bin is None:
            raise PrerequisiteError(
                f"no CNI plugins in {' or '.join(map(str, prerequisites.CNI_DIRS))}; install them there"
            )
        sandbox = pause.ensure(self._layout.base / "pause")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Host(programs, cni_bin, archive.full_ref(sandbox.image), os.cpu_count() or 1, memory)

    def _judge(self, plan: Plan) -> tuple[Verdict, str]:
        found = state.load(self._layout.state)
        leftovers = self._layout.work.exists() or bool(leaks.residue(self._layout))
        verdict, reason = state.judge(found, plan.fingerprint, processes.boot_id(), leftovers, processes.alive)
        if verdict is Verdict.REUSE:
            client = ApiClient(self._layout.network.address(0), self._layout.pki)
            nodes = plan.config.nodes

            def look() -> str | None:
                return client.not_ready() or client.look(lambda: client.nodes_not_ready(nodes))

            try:  # a busy machine answers late: no reason to destroy what runs
                wait.until("health of the running cluster", look, deadline_s=HEALTH_DEADLINE_S, interval_s=0.2)
            except DeadlineError as error:
                return Verdict.REBUILD, str(error)
        return verdict, reason

    def _adopt(self, plan: Plan, host: Host) -> None:
        """Note where this user's programs are: those of whoever started the cluster may go, and restarts and kubectl need them."""
        record = self._running()
        record.programs, record.daemons = _programs(host), _daemons(plan)
        record.save(self._layout.state)

    def _build(self, plan: Plan, host: Host) -> None:
        layout, progress, config = self._layout, self._progress, plan.config
        shutil.rmtree(layout.logs, ignore_errors=True)
        record = ClusterState(
            boot=processes.boot_id(),
            fingerprint=plan.fingerprint,
            nodes=config.nodes,
            gpus=config.gpus,
            programs=_programs(host),
            started=time.time(),
            daemons=_daemons(plan),
        )
        record.save(layout.state)
        with progress.step("certificates and configuration"):
            _load_kernel_modules()
            self._write(plan)
            record.created_dirs = machine.missing_mount_points()
            record.save(layout.state)
            for point in record.created_dirs:
                Path(point).mkdir(parents=True, exist_ok=True)
        with progress.step(f"machines: {', '.join(item.name for item in config.machines)}"):
            network.create_bridge(layout.network)
            program = pause.ensure(layout.base / "pause").program
            store.drop_parked(layout, keep=[item.name for item in config.node_machines])
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda item: store.populate(layout, item.name), config.node_machines))
            for item in config.machines:
                self._boot(item, config, record, program)
            network.route_host(layout.network, config.machines)
        with progress.step("etcd, apiserver and containerd"):
            self._start(record, "cp", "etcd", "apiserver")
            for node in config.node_machines:
                self._start(record, node.name, "containerd")
            client = ApiClient(layout.network.address(0), layout.pki)
            self._wait_for_api(client)
            self._authorise_dns(client)
        with progress.step("controllers, scheduler, DNS and nodes"):
            self._start(record, "cp", "controller-manager", "scheduler", "coredns")
            for node in config.node_machines:
                self._start_node(record, node.name)
            self._wait_for_nodes(client, config)
            self._start(record, "cp", "kube-proxy")
        dead = state.dead_processes(record, record.boot, processes.alive)
        if dead:
            machine_name, _, daemon = dead[0].partition("/")
            raise StateError(
                f"{', '.join(dead)} ended while the cluster started; see {layout.log(machine_name, daemon or 'init')}"
            )
        record.phase = Phase.READY
        record.save(layout.state)

    def _write(self, plan: Plan) -> None:
        layout = self._layout
        layout.work.mkdir(parents=True)
        layout.work.chmod(0o711)
        layout.pki.mkdir(mode=0o700)
        now = datetime.datetime.now(datetime.UTC)
        for name, content in certs.issue(layout.network, plan.config.node_machines, now).items():
            (layout.pki / name).write_bytes(content)
        for path, text in plan.files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def _boot(self, item: Machine, config: ClusterConfig, record: ClusterState, program: Path) -> None:
        def keep(init: Process) -> None:
            record.machines[item.name] = MachineState(init)
            record.save(self._layout.state)

        init = machine.boot(self._layout, item.name, program, keep)
        network.connect(self._layout.network, item, init, config.machines)

    def _start(self, record: ClusterState, name: str, *daemons: str) -> None:
        entry = record.machines[name]
        for daemon in daemons:
            entry.daemons[daemon] = machine.start(self._layout, name, entry.init, daemon, record.daemons[name][daemon])
        record.save(self._layout.state)

    def _start_node(self, record: ClusterState, name: str) -> None:
        """Everything on a node whose containerd was started: a kubelet that finds nobody at its socket exits."""
        containerd = store.Ctr(self._layout.containerd_socket(name))
        log = self._layout.log(name, "containerd")
        wait.until(f"{name}: containerd answers", containerd.answers, deadline_s=READY_DEADLINE_S, log=log)
        self._start(record, name, *(daemon for daemon in record.daemons[name] if daemon != "containerd"))

    def _wait_for_api(self, client: ApiClient) -> None:
        log = self._layout.log("cp", "apiserver")
        wait.until("cp: the API server ready", client.not_ready, deadline_s=READY_DEADLINE_S, interval_s=0.2, log=log)

    def _authorise_dns(self, client: ApiClient) -> None:
        group = "/apis/rbac.authorization.k8s.io/v1"
        role = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": certs.DNS_USER},
        }
        client.create(f"{group}/clusterroles", role | {"rules": list(_DNS_RULES)})
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": certs.DNS_USER},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": certs.DNS_USER},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": certs.DNS_USER}],
        }
        client.create(f"{group}/clusterrolebindings", binding)

    def _wait_for_nodes(self, client: ApiClient, config: ClusterConfig) -> None:
        log = self._layout.log("node-1", "kubelet")

        def look() -> str | None:
            missing = client.nodes_not_ready(config.nodes)
            if missing is None and client.get("/api/v1/namespaces/default/serviceaccounts/default") is None:
                return "the ServiceAccount default does not exist yet"
            return missing

        wait.until(
            f"{config.nodes} nodes Ready",
            lambda: client.look(look),
            deadline_s=READY_DEADLINE_S,
            interval_s=0.2,
            log=log,
        )

    # --- down --------------------------------------------------------------------------------------------------------

    def down(self, purge: bool = False) -> None:
        """End the cluster and check that nothing is left. `purge` also deletes stored images and logs."""
        if os.geteuid() != 0:
            raise PrerequisiteError("ending a local cluster needs root")
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            self._down()
            if purge:
                for folder in (self._layout.seed, self._layout.parked, self._layout.logs, self._layout.base / "pause"):
                    shutil.rmtree(folder, ignore_errors=True)

    def _down(self) -> None:
        layout, record = self._layout, state.load(self._layout.state)
        if record is None and not layout.work.exists() and not leaks.residue(layout):
            self._progress.say("no cluster to end")
            return
        if record is None and (stray := leaks.residue(layout).get("processes")):
            raise StateError(
                f"processes of a cluster run without a record in {layout.state}, so they are not ended: {', '.join(stray)}; "
                "end those called pause, then run down again"
            )
        with self._progress.step("down"):
            if record and record.boot == processes.boot_id():
                for entry in record.machines.values():
                    processes.end(entry.init)
            cgroups.remove(layout.cgroup)
            network.remove(layout.network)
            self._remove_files(record)
            left = leaks.residue(layout)
            if left:
                raise StateError(
                    "down left something behind: "
                    + "; ".join(f"{kind}: {', '.join(names)}" for kind, names in left.items())
                )
            layout.state.unlink(missing_ok=True)

    def _remove_files(self, record: ClusterState | None) -> None:
        layout = self._layout
        mounted = leaks.mounts_below(layout.base)
        if mounted:  # nothing of ours is ever mounted on the host; deleting through a foreign mount would destroy data
            raise StateError(
                f"something is mounted below {layout.base}: {', '.join(mounted)}; unmount it, then run down again"
            )
        if layout.work.exists():
            for folder in sorted(layout.work.glob("node-*")):
                if folder.is_dir():
                    store.park(layout, folder.name)
            shutil.rmtree(layout.work)
        for created in reversed(record.created_dirs if record else []):
            # Another cluster of this machine may have mounted its own folder there, in its own namespaces.
            if Path(created).is_dir() and not os.listdir(created) and not leaks.mounted_somewhere(created):
                os.rmdir(created)

    # --- images ------------------------------------------------------------------------------------------------------

    def load(self, images: Iterable[Path]) -> None:
        """Make the images of the archives available on every node; without a running cluster, to the next one."""
        archives = [archive.read(path) for path in images]
        if os.geteuid() != 0:
            raise PrerequisiteError("loading images into a local cluster needs root")
        self.prerequisites()
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            self._load(archives)

    def _load(self, archives: list[Archive]) -> None:
        if not archives:
            return
        layout, record = self._layout, state.load(self._layout.state)
        seed = store.load_into_seed(layout, archives, self._progress)
        refs = [ref for item in archives for ref in item.refs]
        if record is None or record.phase is not Phase.READY:
            self._progress.say(f"no cluster runs; {', '.join(refs)} will be on its nodes when it starts")
            return
        if dead := state.unreachable(record, processes.boot_id(), processes.alive):
            self._progress.say(
                f"{', '.join(dead)} do not run; {', '.join(refs)} will be on the nodes when `make cluster-up` has repaired the cluster"
            )
            return
        nodes = [name for name in record.machines if "containerd" in record.machines[name].daemons]

        def serve(node: str) -> int:
            fresh = sum(store.link(layout, node, ref, seed) for ref in refs)
            store.prune(layout, node, seed)
            return fresh

        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            fresh = sum(pool.map(serve, nodes))
        what = (
            f"linked into {len(nodes)} nodes ({time.monotonic() - began:.1f} s)" if fresh else "already on every node"
        )
        self._progress.say(f"{', '.join(refs)}: {what}")

    # --- what runs ---------------------------------------------------------------------------------------------------

    def connect(self) -> Cluster:
        """The running cluster."""
        record = self._running()
        dead = state.dead_processes(record, processes.boot_id(), processes.alive)
        if dead:
            raise StateError(f"the cluster is broken: {', '.join(dead)} do not run; repair it with `make cluster-up`")
        programs = {name: Path(path) for name, path in record.programs.items()}
        if not (programs["kubectl"].exists() and programs["helm"].exists()):
            raise StateError(
                f"{programs['kubectl']} or helm is gone since the cluster was started; `make cluster-up` finds or builds them again"
            )
        return Cluster(self.name, self._layout.kubeconfig, programs["kubectl"], programs["helm"], direct=True)

    def status(self) -> Report:
        """Nodes, daemons, memory and images; also of a broken cluster."""
        record = state.load(self._layout.state)
        if record is None:
            raise StateError("no cluster runs; start one with `make cluster-up`")
        return collect(self._layout, record)

    # --- faults and repair, for tests --------------------------------------------------------------------------------

    def restart_daemon(self, name: str, daemon: str) -> None:
        """End a daemon and start it again with the same command line; returns when the API server is ready (again)."""
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            record = self._running()
            processes.end(record.machines[name].daemons[daemon])
            self._start(record, name, daemon)
            self._wait_for_api(ApiClient(self._layout.network.address(0), self._layout.pki))

    def audited(self, user: str) -> list[dict[str, Any]]:
        """What a ServiceAccount asked the API server for and how it was answered, oldest first."""
        return audit.of_user(self._layout.audit.read_text(), user)

    def power_off(self, name: str) -> None:
        """End a machine and everything in it at once. `boot` brings it back; `up` would rebuild the cluster."""
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            init = self._running().machines[name].init
            network.unplug(self._layout.network, name)
            processes.end(init)

    def boot(self, name: str) -> None:
        """Start a node that was powered off, with its data, and all its daemons; returns when its kubelet reports again."""
        with exclusive(self._layout.lock, self._progress, "the cluster"):
            record = self._running()
            if processes.alive(record.machines[name].init):
                raise StateError(f"machine {name} runs; power it off first")
            config = ClusterConfig(record.nodes, record.gpus)
            item = next(item for item in config.node_machines if item.name == name)
            client = ApiClient(self._layout.network.address(0), self._layout.pki)
            lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
            before = client.get(lease)
            self._boot(item, config, record, pause.ensure(self._layout.base / "pause").program)
            self._start(record, name, "containerd")
            self._start_node(record, name)
            wait.until(
                f"{name}: the kubelet renews its lease",
                lambda: client.look(lambda: None if client.get(lease) != before else "not yet"),
                deadline_s=READY_DEADLINE_S,
                interval_s=0.2,
                log=self._layout.log(name, "kubelet"),
            )

    def _running(self) -> ClusterState:
        record = state.load(self._layout.state)
        if record is None or record.phase is not Phase.READY:
            raise StateError("no cluster runs; start one with `make cluster-up`")
        return record


def _programs(host: Host) -> dict[str, str]:
    return {name: str(path) for name, path in host.programs.items()}


def _daemons(plan: Plan) -> dict[str, dict[str, list[str]]]:
    return {name: {daemon: list(argv) for daemon, argv in daemons.items()} for name, daemons in plan.daemons.items()}


def _load_kernel_modules() -> None:
    """Load what may be a module; whether it is there is seen from what it offers, since it may be built in."""
    if "overlay" not in Path("/proc/filesystems").read_text():
        _load_kernel_module("overlay")
    if not Path("/proc/sys/net/bridge").is_dir():
        _load_kernel_module("br_netfilter")


def _load_kernel_module(name: str) -> None:
    try:
        run(["modprobe", name])
    except HarnessError as error:
        raise PrerequisiteError(f"this kernel does not offer {name}, which the cluster needs: {error}") from error
