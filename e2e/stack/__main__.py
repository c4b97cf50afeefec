"""`python -m stack demo` and `python -m stack test [pytest arguments]`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from functools import partial

from cluster import interrupt
from cluster.errors import HarnessError, StateError
from cluster.handle import current
from stack import release
from stack.demo import demo
from stack.prepare import prepare
from stack.progress import PROGRESS, ROOT, StepFailed, run_module, started

OK, FAILED, NO_TESTS = 0, 1, 5
"""Exit statuses of pytest."""


def running() -> bool:
    """True where a cluster is up already; it is then kept."""
    try:
        current()
    except StateError:
        return False
    return True


def test(arguments: list[str]) -> int:
    """Run e2e/tests: first, side by side, what only uses the stack, then what breaks or replaces parts of it.

    Chart and cluster are left as they were found, except that a cluster that this run brought up stays with --keep.
    """
    keep = "--keep" in arguments or running()
    pytest = [sys.executable, "-m", "pytest", str(ROOT / "e2e" / "tests"), *(a for a in arguments if a != "--keep")]
    try:
        prepared = prepare()  # minutes the first time: out here it shows, and no test's deadline holds it
        was_there = release.installed(prepared.cluster)
        release.install(prepared)
        try:
            return worst(map(partial(ended, images=prepared.references), rounds(pytest)), stop="-x" in arguments)
        finally:
            if keep and not was_there:
                release.uninstall(prepared.cluster)
    finally:
        if not keep:
            run_module("cluster", "down")


def rounds(pytest: list[str]) -> list[list[str]]:
    """Most of a test's time is waiting for pods, so two files at a time take little more than one."""
    return [[*pytest, "-m", "not alone", "--numprocesses=2", "--dist=loadfile"], [*pytest, "-m", "alone"]]


def ended(command: list[str], *, images: Mapping[str, str]) -> int:
    with started(command, stdin=None, environment=images) as [child]:
        return child.wait()


def worst(codes: Iterable[int], *, stop: bool = False) -> int:
    """Exit status of several runs of pytest; what is not a judgement on tests, and with `stop` the first failure, ends them."""
    seen = set()
    for code in codes:
        seen.add(code)
        if code not in (OK, FAILED, NO_TESTS) or (stop and code == FAILED):
            return code
    return FAILED if FAILED in seen else OK if OK in seen else NO_TESTS


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
