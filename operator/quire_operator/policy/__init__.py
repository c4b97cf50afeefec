"""Pure decisions: which revision is wanted, how many pods and which share of the requests each revision has next.

    zero ─▶ plan ─▶ decide ─▶ {aims, sizes} ─▶ {commands, weights} ─▶ views

No I/O, no clock of its own, no Kubernetes client. What may be decided is tested as properties: never below the available
minimum, never above the surge, weights only to ready pods, always converging.
"""

from quire_operator.policy.decide import Decision, Hold, decide
from quire_operator.policy.plan import Plan, control_of, make_plan, progress_of, strategy_of, to_seconds, to_text
from quire_operator.policy.revision import intent_of, revision_of, standing_revision
from quire_operator.policy.views import Control, Limits, Progress, RevisionView, Situation, Step, Strategy, find
from quire_operator.policy.zero import change_of, stance_of

__all__ = [
    "Control",
    "Decision",
    "Hold",
    "Limits",
    "Plan",
    "Progress",
    "RevisionView",
    "Situation",
    "Step",
    "Strategy",
    "change_of",
    "control_of",
    "decide",
    "find",
    "intent_of",
    "make_plan",
    "progress_of",
    "revision_of",
    "stance_of",
    "standing_revision",
    "strategy_of",
    "to_seconds",
    "to_text",
]
