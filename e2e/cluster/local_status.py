"""Collects what `status` shows of a local cluster: from the record, the processes, the API server and the nodes' containerd.

Any of them may be dead: then that is what the table says.
"""

import time
from typing import Any

from cluster import cgroups, processes, store
from cluster.api import ApiClient, is_ready
from cluster.errors import HarnessError
from cluster.layout import Layout
from cluster.plan import GPU_RESOURCE
from cluster.state import ClusterState, MachineState, Phase
from cluster.status import ImageStatus, MachineStatus, Report, duration, render

SHOWN_RESOURCES = ("cpu", "memory", GPU_RESOURCE)


def collect(layout: Layout, record: ClusterState) -> Report:
    """The cluster as it is now."""
    problems = [] if record.phase is Phase.READY else ["its start was not finished"]
    boot = processes.boot_id()
    alive = {
        name: {daemon for daemon, process in entry.daemons.items() if record.boot == boot and processes.alive(process)}
        for name, entry in record.machines.items()
    }
    nodes, pods = {}, []
    if "apiserver" in alive.get("cp", ()):
        client = ApiClient(layout.network.address(0), layout.pki)
        try:
            nodes = {node["metadata"]["name"]: node for node in _items(client, "/api/v1/nodes")}
            pods = [pod["spec"].get("nodeName") for pod in _items(client, "/api/v1/pods")]
        except (OSError, HarnessError) as error:
            problems.append(f"its API server does not answer ({error})")
    machines = [
        _machine(layout, index, name, entry, alive[name], nodes.get(name), pods.count(name))
        for index, (name, entry) in enumerate(record.machines.items())
    ]
    problems += [
        f"{machine.name} is {machine.condition}" for machine in machines if machine.condition not in ("up", "Ready")
    ]
    problems += [f"{machine.name}/{name} is dead" for machine in machines for name, runs in machine.daemons if not runs]
    stored: dict[str, dict[str, str]] = {}
    for name in (name for name, daemons in alive.items() if "containerd" in daemons):
        try:
            stored[name] = store.Ctr(layout.containerd_socket(name)).images()
        except HarnessError as error:
            problems.append(f"{name}/containerd does not answer ({error})")
    heading = (
        f"local cluster in {layout.base}, started {duration(time.time() - record.started)} ago; logs in {layout.logs}"
    )
    if problems:
        heading += f"\nBROKEN: {'; '.join(problems)}. Repair it with `make cluster-up`."
    return Report(render(heading, machines, _images(layout, stored)), healthy=not problems)


def _items(client: ApiClient, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = (client.get(path) or {"items": []})["items"]
    return items


def _machine(
    layout: Layout,
    index: int,
    name: str,
    entry: MachineState,
    alive: set[str],
    node: dict[str, Any] | None,
    pods: int,
) -> MachineStatus:
    if not processes.alive(entry.init):
        condition = "DEAD"
    elif index == 0:
        condition = "up"
    else:
        condition = "Ready" if node and is_ready(node) else "NotReady"
    offered = node["status"]["allocatable"] if node else {}
    return MachineStatus(
        name,
        layout.network.address(index),
        condition,
        cgroups.memory_bytes(layout.cgroup, name),
        pods if node else None,
        " ".join(_quantity(key, offered[key]) for key in SHOWN_RESOURCES if key in offered) or "-",
        [(daemon, daemon in alive) for daemon in entry.daemons],
    )


def _quantity(resource: str, quantity: str) -> str:
    if resource == "memory" and quantity.endswith("Ki"):
        return f"{int(quantity.removesuffix('Ki')) / (1 << 20):.1f}Gi"
    return f"{quantity} cpu" if resource == "cpu" else f"{quantity} {resource}"


def _images(layout: Layout, on: dict[str, dict[str, str]]) -> list[ImageStatus]:
    blobs = layout.seed / "store" / store.BLOBS
    return [
        ImageStatus(
            ref,
            sum((blobs / blob).stat().st_size for blob in image.blobs),
            [node for node, images in on.items() if images.get(ref) in image.targets],
        )
        for ref, image in sorted(store.read_seed(layout).images.items())
    ]
