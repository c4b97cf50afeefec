"""The way to a running stack, as a person sees it: harness progress lines, and child programs that print their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
PROGRESS = Progress()
GRACE_S = 120.0
"""For an interrupted command to take down what it started; a cluster takes seconds."""


class StepFailed(Exception):
    """A step of the way to a running stack failed; the message says which one, why, and where to look."""


def run_module(*call: str) -> str:
    """`run_modules` of one."""
    return run_modules(call)[0]


def run_modules(*calls: Sequence[str]) -> list[str]:
    """Run `python -m MODULE ARGS` for each call, side by side, and return their stdouts; their progress goes to our stderr.

    There is no deadline here: each step inside has its own, and ends in order when it runs out. Raises StepFailed.
    """
    outputs = []
    with started(*([sys.executable, "-m", *call] for call in calls), stdout=subprocess.PIPE) as children:
        for call, child in zip(calls, children, strict=True):
            outputs.append(child.communicate()[0])
            if child.returncode != 0:
                shown = f"python -m {' '.join(call)}"
                raise StepFailed(f"{shown} ended with code {child.returncode}; its last lines above say why")
    return outputs


@contextmanager
def started(
    *commands: Sequence[str],
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """The commands' processes, in the repository's root, with `environment` beside this process's own. Those that still run after the block are told to end what they started."""
    children: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            children.append(
                subprocess.Popen(
                    command, cwd=ROOT, stdin=stdin, stdout=stdout, text=True, env={**os.environ, **(environment or {})}
                )
            )
        yield children
    finally:
        for child in children:
            if child.poll() is None:
                child.terminate()
        for child in children:
            if child.stdout:
                child.stdout.close()
            try:
                child.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
