"""`python -m stack demo` and `python -m stack test [pytest arguments]`."""

from __future__ import annotations

import subprocess
import sys

from cluster.errors import HarnessError, StateError
from cluster.handle import current
from stack.demo import demo
from stack.progress import PROGRESS, ROOT, StepFailed, run_module


def running() -> bool:
    """True where a cluster is up already; it is then kept."""
    try:
        current()
    except StateError:
        return False
    return True


def test(arguments: list[str]) -> int:
    """Run e2e/tests; a cluster that this run brought up is ended again (keep it with --keep)."""
    keep = "--keep" in arguments or running()
    pytest = [sys.executable, "-m", "pytest", str(ROOT / "e2e" / "tests"), *(a for a in arguments if a != "--keep")]
    try:
        return subprocess.run(pytest, cwd=ROOT, check=False).returncode
    finally:
        if not keep:
            run_module("cluster", "down", deadline_s=120)


def main(arguments: list[str]) -> int:
    match arguments:
        case ["demo"]:
            demo()
            return 0
        case ["test", *rest]:
            return test(rest)
    PROGRESS.say("usage: python -m stack demo | test [--keep] [pytest arguments]")
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (StepFailed, HarnessError) as exc:
        PROGRESS.say(f"error: {exc}")
        sys.exit(1)
