"""What a person sees while long steps run: a headline with the seconds it took, and the lines of child processes.

Two steps may run side by side; each line of a child carries the step's name.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class StepFailed(Exception):
    """A step of the way to a running stack failed; the message says which one, why, and where to look."""


def say(text: str) -> None:
    """Print one line at once, on standard error, so that standard output stays the answer's."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(headline: str) -> Iterator[None]:
    """Announce a step and, when it is over, the seconds it took."""
    start = time.monotonic()
    say(f"==> {headline}")
    yield
    say(f"    done: {headline} ({time.monotonic() - start:.1f} s)")


def run_module(name: str, module: str, *args: str, deadline_s: float) -> str:
    """Run `python -m MODULE ARGS` from the repository's root, echo its stderr under `name`, return its stdout."""
    command = [sys.executable, "-m", module, *args]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stderr is not None
        last: deque[str] = deque(maxlen=20)
        stderr = child.stderr

        def echo() -> None:
            for line in stderr:
                last.append(line)
                say(f"    [{name}] {line.rstrip()}")

        reader = threading.Thread(target=echo, name=f"stderr of {name}")
        reader.start()
        timer = threading.Timer(deadline_s, child.terminate)
        timer.start()
        try:
            out = child.stdout.read()
            code = child.wait()
        finally:
            expired = not timer.is_alive()
            timer.cancel()
            reader.join(timeout=10)
    if expired:
        raise StepFailed(f"{name}: not done within {deadline_s:.0f} s: python -m {module} {' '.join(args)}")
    if code != 0:
        raise StepFailed(
            f"{name}: python -m {module} {' '.join(args)} ended with code {code}: {''.join(last).strip()[-600:]}"
        )
    return out
