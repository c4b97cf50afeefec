"""Pure decisions: which revision is wanted, and how many pods each revision should have next.

No I/O, no clock of its own, no Kubernetes client. What may be decided is tested as properties: never below the
available minimum, never above the surge, always converging.
"""

from quire_operator.policy.plan import Plan, make_plan, revision_views
from quire_operator.policy.revision import revision_of
from quire_operator.policy.rolling import Limits, RevisionView, next_replicas

__all__ = ["Limits", "Plan", "RevisionView", "make_plan", "next_replicas", "revision_of", "revision_views"]
