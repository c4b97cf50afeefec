"""Settings of Hypothesis for every unit and contract test.

No time limit on one example, for the machine may be busy. `make test` draws the same examples every time, so that a change is red by what
it changed; `make fuzz` draws new ones (HYPOTHESIS_PROFILE=search), and what it finds becomes a test of its own.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("fixed", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
