"""Where the routers are: the addresses behind their Service, ready or not, for one that ends has requests that wait too."""

from __future__ import annotations

from quire_operator.cluster import kinds
from quire_operator.cluster.client import Cluster

SERVICE_LABEL = "kubernetes.io/service-name"


async def router_addresses(cluster: Cluster, namespace: str, service: str) -> tuple[str, ...]:
    """Hosts as a URL writes them, sorted; of a pod with two families the IPv4 address."""
    by_pod: dict[str, str] = {}
    slices = await cluster.listed(kinds.EndpointSlice, namespace, {SERVICE_LABEL: service})
    for each in sorted(slices, key=lambda each: str(each.get("addressType")), reverse=True):
        family = each.get("addressType")
        if family not in ("IPv4", "IPv6"):
            continue
        for endpoint in each.get("endpoints") or ():
            for address in (endpoint.get("addresses") or ())[:1]:
                pod = (endpoint.get("targetRef") or {}).get("name") or address
                by_pod[pod] = address if family == "IPv4" else f"[{address}]"  # IPv4 comes last and stays
    return tuple(sorted(by_pod.values()))
