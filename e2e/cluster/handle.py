"""What tests import: the running cluster.

from cluster import handle

cluster = handle.current()
cluster.kubectl("apply", "-f", "examples/smollm2.yaml")
cluster.wait("llmdeployment/smollm2", "condition=Ready", namespace="demo", deadline_s=180)
with cluster.reach("quire-system", "quire-router", 80) as url: ...
"""

from cluster.client import Cluster, Event
from cluster.providers import choose

__all__ = ["Cluster", "Event", "current"]


def current() -> Cluster:
    """The running cluster. Raises StateError with the command that starts one when there is none."""
    return choose().connect()
