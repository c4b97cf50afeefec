"""The cluster's wires: a bridge on the host, one link per machine, and static routes. All by `ip`; only here."""

import json
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from cluster.errors import CommandError, PrerequisiteError
from cluster.layout import Machine, Network
from cluster.processes import Process
from cluster.run import run

_CALL_IPTABLES = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def host_routes() -> list[dict[str, Any]]:
    """Every IPv4 route of the host."""
    routes: list[dict[str, Any]] = json.loads(run(["ip", "-j", "-4", "route", "show", "table", "all"]) or "[]")
    return routes


def host_links() -> set[str]:
    """Names of every link of the host."""
    return {link["ifname"] for link in json.loads(run(["ip", "-j", "link"]))}


def conflicts(network: Network, routes: Iterable[dict[str, Any]]) -> list[str]:
    """Routes of somebody else inside the cluster's ranges."""
    found = []
    for route in routes:
        target = route["dst"]
        if target == "default" or route.get("dev") == network.bridge:
            continue
        if any(IPv4Network(target, strict=False).overlaps(own) for own in network.all):
            found.append(f"{target} via {route.get('dev', '?')}")
    return found


def owned_routes(network: Network, routes: Iterable[dict[str, Any]]) -> list[str]:
    """Routes of the host that lead into the cluster."""
    return sorted({str(route["dst"]) for route in routes if route.get("dev") == network.bridge})


def owned_links(network: Network, links: Iterable[str]) -> list[str]:
    return sorted(link for link in links if link == network.bridge or link.startswith(network.veth("")))


def firewall_problem(call_iptables: str, rules: str) -> str | None:
    """Why the host's firewall would keep nodes apart, or None. call_iptables: the sysctl; rules: `iptables -S FORWARD`."""
    if call_iptables.strip() != "1" or not rules.startswith("-P FORWARD DROP"):
        return None
    return (
        "this machine's firewall drops what passes through a bridge (policy DROP of FORWARD, as Docker and ufw set it), so nodes "
        "could not talk to each other; `sysctl -w net.bridge.bridge-nf-call-iptables=0` keeps it off bridges, or use kind"
    )


def _check_firewall() -> None:
    if _CALL_IPTABLES.exists():
        problem = firewall_problem(_CALL_IPTABLES.read_text(), run(["iptables", "-w", "5", "-S", "FORWARD"]))
        if problem:
            raise PrerequisiteError(problem)


def hardware_address(address: str) -> str:
    """The same at each boot, as a machine's is: locally administered, with the IPv4 address in it."""
    return "02:00:" + IPv4Address(address).packed.hex(":")


def create_bridge(network: Network) -> None:
    """The bridge with the host's address. Raises PrerequisiteError when another network or the firewall is in the way."""
    _check_firewall()
    in_the_way = conflicts(network, host_routes())
    if in_the_way:
        raise PrerequisiteError(
            f"addresses of 198.18.0.0/15 are routed elsewhere on this machine ({'; '.join(in_the_way)}); the cluster needs them"
        )
    # A bridge without an address of its own takes the lowest of its links': it would change as a machine goes, and what machines
    # send to the host would be lost until they ask again (54 s were seen).
    run(["ip", "link", "add", network.bridge, "address", hardware_address(network.host), "type", "bridge"])
    run(["ip", "address", "add", f"{network.host}/24", "dev", network.bridge])
    run(["ip", "link", "set", network.bridge, "up"])


def connect(network: Network, machine: Machine, init: Process, machines: Iterable[Machine]) -> None:
    """The machine's link, address and routes, on both sides. Also after the machine booted again.

    The kernel takes a dead namespace apart some time after its last process: until then the link of the boot before is there.
    """
    link = network.veth(machine.name)
    address = network.address(machine.index)
    if link in host_links():
        _delete(link)
    peer = ["peer", "name", "eth0", "address", hardware_address(address), "netns", str(init.pid)]
    run(["ip", "link", "add", link, "type", "veth", *peer])
    run(["ip", "link", "set", link, "master", network.bridge, "up"])
    inside = [
        f"address add {address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {network.host}",
        *(
            f"route add {network.pod_subnet(other.index)} via {network.address(other.index)}"
            for other in machines
            if other.index not in (0, machine.index)
        ),
    ]
    run(["nsenter", "-t", str(init.pid), "-n", "ip", "-batch", "-"], input_text="\n".join(inside) + "\n")


def unplug(network: Network, machine: str) -> None:
    """Nothing of the machine is heard from now on, as without power: no goodbye of its kernel for connections of processes that end."""
    run(["ip", "link", "set", network.veth(machine), "down"])


def route_host(network: Network, machines: Iterable[Machine]) -> None:
    """The host reaches pods by their node, and Services by the control plane's kube-proxy."""
    lines = [
        f"route replace {network.services} via {network.address(0)} dev {network.bridge}",
        *(
            f"route replace {network.pod_subnet(machine.index)} via {network.address(machine.index)} dev {network.bridge}"
            for machine in machines
            if machine.index
        ),
    ]
    run(["ip", "-batch", "-"], input_text="\n".join(lines) + "\n")


def remove(network: Network) -> None:
    """Delete the links; routes go with the bridge."""
    for link in reversed(owned_links(network, host_links())):
        _delete(link)


def _delete(link: str) -> None:
    """A link whose namespace is just dying may vanish meanwhile."""
    try:
        run(["ip", "link", "delete", link])
    except CommandError:
        if link in host_links():
            raise
