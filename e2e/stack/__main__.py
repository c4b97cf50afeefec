"""`python -m stack demo` and `python -m stack test [pytest arguments]`."""

from __future__ import annotations

import sys

from cluster import interrupt
from cluster.errors import HarnessError, StateError
from cluster.handle import current
from stack.demo import demo
from stack.prepare import prepare
from stack.progress import PROGRESS, ROOT, StepFailed, run_module, started


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
        prepare()  # minutes the first time: out here it shows, and no test's deadline holds it
        with started(pytest, stdin=None) as [child]:
            return child.wait()
    finally:
        if not keep:
            run_module("cluster", "down")


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
    interrupt.install()
    try:
        sys.exit(main(sys.argv[1:]))
    except (StepFailed, HarnessError) as exc:
        PROGRESS.say(f"error: {exc}")
        sys.exit(1)
    except KeyboardInterrupt:
        PROGRESS.say("interrupted")
        sys.exit(130)
