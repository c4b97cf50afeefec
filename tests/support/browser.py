"""A Chromium for tests of web pages: the one of this machine, installed from Debian where there is none."""

from __future__ import annotations

import shutil

from cluster import prerequisites
from cluster.progress import Progress


def chromium() -> str:
    """Its path. Raises PrerequisiteError where it cannot be had (as on Ubuntu, which has it as a snap only: install google-chrome)."""
    for name in ("chromium", "google-chrome"):
        if path := shutil.which(name):
            return path
    prerequisites.ensure(("chromium",), Progress())
    return shutil.which("chromium") or "chromium"
