"""Run a program to its end, with a deadline, and say clearly why it failed. No shell."""

import contextlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from cluster.errors import CommandError, DeadlineError, PrerequisiteError

TAIL_LINES = 20


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines of a text, indented, for an error message."""
    return "\n".join(f"    {line}" for line in text.strip().splitlines()[-lines:])


def log_tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a log file, indented; says so when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return tail(file.read().decode(errors="replace"), lines)
    except FileNotFoundError:
        return "    (no log was written)"


def run(
    argv: Sequence[str | Path],
    *,
    deadline_s: float = 60.0,
    input_text: str | None = None,
    input_file: Path | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """The program's standard output. Raises CommandError, DeadlineError or PrerequisiteError; never returns a failure."""
    command = [str(part) for part in argv]
    shown = " ".join(command) if len(" ".join(command)) < 400 else " ".join(command)[:400] + " ..."
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context((input_file or Path(os.devnull)).open("rb")) if input_text is None else None
        done = _run(command, shown, stdin, input_text, deadline_s, env, cwd)
    if done.returncode != 0:
        output = tail(done.stderr or done.stdout) or "    (it printed nothing)"
        raise CommandError(f"`{shown}` failed with exit status {done.returncode}:\n{output}")
    return done.stdout


def _run(
    command: list[str],
    shown: str,
    stdin: BinaryIO | None,
    input_text: str | None,
    deadline_s: float,
    env: Mapping[str, str] | None,
    cwd: Path | None,
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            input=input_text,
            stdin=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            env=dict(env) if env is not None else None,
            cwd=cwd,
            check=False,
        )
    except FileNotFoundError as error:
        raise PrerequisiteError(
            f"{command[0]} was not found; `make cluster-up` installs what Debian and Ubuntu have"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"`{shown}` did not end within {deadline_s:.0f} s") from error
