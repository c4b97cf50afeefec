"""Run a long program with its output in a log, its current step in the progress lines, and a deadline.

At the deadline, after a failure, and when this process ends, however it ends, everything that the program started ends
with it (see `cluster.keeper`), so that nothing writes any more where the next run works.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cluster import keeper
from cluster.errors import CommandError, DeadlineError
from cluster.progress import Progress
from cluster.run import log_tail

KEEPER = (sys.executable, "-I", "-S", keeper.__file__)
END_DEADLINE_S = 30.0


def last_line(lines: Sequence[str]) -> str:
    """What a program said last."""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def stream(
    argv: Sequence[str],
    *,
    title: str,
    log: Path,
    deadline_s: float,
    progress: Progress,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    describe: Callable[[Sequence[str]], str] = last_line,
) -> str:
    """Run to the end and return the log's text. `describe` says from the output so far where it is.

    Raises CommandError with the log's last lines, or DeadlineError naming the step that was running.
    """
    log.parent.mkdir(parents=True, exist_ok=True)

    def current() -> str:
        try:
            lines = log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return describe(lines)[:110]

    with progress.step(title, current), log.open("wb") as output:
        child = subprocess.Popen(
            [*KEEPER, str(os.getpid()), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
        try:
            status = child.wait(deadline_s)
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(
                f"{title} did not end within {deadline_s:.0f} s; it was at: {current() or '?'}; its log is {log}"
            ) from error
        finally:
            _end(child)
        if status:
            raise CommandError(
                f"{title}: {argv[0]} failed with exit status {status}; its log {log} ends:\n{log_tail(log, 40)}"
            )
    return log.read_text(errors="replace")


def _end(child: subprocess.Popen[bytes]) -> None:
    """The keeper ends what is below it; it is killed itself only where something below cannot be ended."""
    if child.poll() is not None:
        return
    child.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(END_DEADLINE_S)
        return
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
