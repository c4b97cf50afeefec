"""Fake GPUs: a device plugin that offers `nvidia.com/gpu` to the kubelet of the machine it runs in.

A daemon of a node (`python -m cluster.gpu --count 2 --node node-1`). A pod that asks for GPUs gets them counted and the
same environment variable as from NVIDIA's plugin, but no device. A device is unhealthy while a file of its name lies in
the folder `unhealthy` beside the sockets; tests make and remove such files.
"""

import argparse
import os
import queue
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from cluster import deviceplugin_pb2 as api
from cluster import deviceplugin_pb2_grpc as services
from cluster.plan import GPU_RESOURCE

FOLDER = Path("/var/lib/kubelet/device-plugins")
"""Compiled into kubelet; every machine has its own."""
SOCKET = "nvidia.sock"
CHECK_S = 0.5
"""How often health files and the own socket are looked at; kubelet empties the folder when it starts."""


def devices(node: str, count: int, unhealthy: set[str]) -> list[api.Device]:
    """The node's devices with their health."""
    names = [f"GPU-{node}-{index}" for index in range(count)]
    return [api.Device(ID=name, health="Unhealthy" if name in unhealthy else "Healthy") for name in names]


class Plugin(services.DevicePluginServicer):
    """What kubelet calls."""

    def __init__(self, node: str, count: int, folder: Path) -> None:
        self._node, self._count = node, count
        self._unhealthy_folder = folder / "unhealthy"
        self._watchers: list[queue.SimpleQueue[None]] = []
        self._last: set[str] = set()

    def unhealthy(self) -> set[str]:
        try:
            return set(os.listdir(self._unhealthy_folder))
        except FileNotFoundError:
            return set()

    def check(self) -> None:
        """Tell kubelet when a device's health changed."""
        now = self.unhealthy()
        if now != self._last:
            self._last = now
            for watcher in self._watchers:
                watcher.put(None)

    def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    def ListAndWatch(self, request: api.Empty, context: grpc.ServicerContext) -> Iterator[api.ListAndWatchResponse]:
        changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        context.add_callback(lambda: changes.put(None))
        self._watchers.append(changes)
        try:
            while context.is_active():
                yield api.ListAndWatchResponse(devices=devices(self._node, self._count, self.unhealthy()))
                changes.get()
        finally:
            self._watchers.remove(changes)

    def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:
        return api.AllocateResponse(
            container_responses=[
                api.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(container.devices_ids)})
                for container in request.container_requests
            ]
        )


def serve(plugin: Plugin, folder: Path) -> grpc.Server:
    """Serve at the plugin's socket and register it with kubelet. Raises grpc.RpcError while kubelet does not answer."""
    (folder / SOCKET).unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    services.add_DevicePluginServicer_to_server(plugin, server)
    server.add_insecure_port(f"unix://{folder / SOCKET}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix://{folder / 'kubelet.sock'}") as channel:
            request = api.RegisterRequest(version="v1beta1", endpoint=SOCKET, resource_name=GPU_RESOURCE)
            services.RegistrationStub(channel).Register(request, timeout=5)
    except grpc.RpcError:
        server.stop(None).wait()
        raise
    return server


def main() -> None:
    parser = argparse.ArgumentParser(prog="cluster.gpu", description=__doc__)
    parser.add_argument("--count", type=int, required=True, help="number of GPUs")
    parser.add_argument("--node", required=True, help="name of the node, part of every device's name")
    arguments = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    plugin = Plugin(arguments.node, arguments.count, FOLDER)
    server: grpc.Server | None = None
    while not stop.wait(CHECK_S):
        if server is not None and (FOLDER / SOCKET).exists():
            plugin.check()
            continue
        if server is not None:
            print("the socket has vanished: kubelet started anew", flush=True)
            server.stop(None).wait()
            server = None
        try:
            server = serve(plugin, FOLDER)
        except grpc.RpcError as error:
            print(f"kubelet does not answer yet: {error.details()}", flush=True)
        else:
            print(f"registered {arguments.count} x {GPU_RESOURCE}", flush=True)
    if server is not None:
        server.stop(None).wait()


if __name__ == "__main__":
    main()
