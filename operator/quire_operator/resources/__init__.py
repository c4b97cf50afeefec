"""Pure builders, one kind a module: from a parsed LLMDeployment to the object that should exist.

Same input, same bytes: the revision is a hash of what is built here. No I/O, no clock, no look at what exists.
"""

from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.deployment import build_deployment, workload_name
from quire_operator.resources.hpa import build_hpa
from quire_operator.resources.pod import build_pod_template
from quire_operator.resources.service import build_service
from quire_operator.resources.supplies import build_supplies, supply_names
from quire_operator.resources.units import build_workload

__all__ = [
    "PodDefaults",
    "build_deployment",
    "build_hpa",
    "build_pod_template",
    "build_service",
    "build_supplies",
    "build_workload",
    "supply_names",
    "workload_name",
]
