"""All traffic with the API server outside kopf's watches: reads, server-side apply, status, events, certificate store.

One field manager (`quire-operator`). Nothing is written that is there already. No decisions are taken here.
"""

from quire_operator.cluster.client import Cluster, connect, is_missing
from quire_operator.cluster.routers import router_addresses
from quire_operator.cluster.supplies import Supplies
from quire_operator.cluster.units import Units, leaders_of

__all__ = ["Cluster", "Supplies", "Units", "connect", "is_missing", "leaders_of", "router_addresses"]
