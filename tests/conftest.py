"""Settings of Hypothesis for every unit and contract test: no time limit on one example, for the machine may be busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("quire", settings(), deadline=None)
settings.load_profile("quire")
