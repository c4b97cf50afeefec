"""The small kinds, each a controller of its own beside the one of LLMDeployments: ModelCache, LLMAdapter.

Each is the work of a queue (a key in, an Outcome out), and level-triggered like the rest: read, decide with `policy`, apply what
`resources` builds, report. `operate` gives each its queue and tells `handlers` what to watch for it.
"""

from quire_operator.controllers.adapters import Adapters
from quire_operator.controllers.modelcache import ModelCaches

__all__ = ["Adapters", "ModelCaches"]
