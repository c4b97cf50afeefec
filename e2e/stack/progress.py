"""The way to a running stack, as a person sees it: harness progress lines, and child programs that print their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
PROGRESS = Progress()


class StepFailed(Exception):
    """A step of the way to a running stack failed; the message says which one, why, and where to look."""


def run_module(module: str, *args: str, deadline_s: float) -> str:
    """Run `python -m MODULE ARGS` from the repository's root and return its stdout; its progress goes to our stderr."""
    command = [sys.executable, "-m", module, *args]
    shown = f"python -m {module} {' '.join(args)}"
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise StepFailed(f"{shown} did not end within {deadline_s:.0f} s") from exc
    if done.returncode != 0:
        raise StepFailed(f"{shown} ended with code {done.returncode}; its last lines above say why")
    return done.stdout
