"""Promise: a long program ends at its deadline, with its caller's process, and says why it failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster import processes, wait
from cluster.errors import CommandError, DeadlineError
from cluster.progress import Progress
from cluster.stream import stream

E2E = Path(__file__).resolve().parents[3] / "e2e"
CALLER = """
import sys
from pathlib import Path
from cluster.progress import Progress
from cluster.stream import stream
mark, log = map(Path, sys.argv[1:])
stream(["sh", "-c", f"echo $$ > {mark}.new && mv {mark}.new {mark} && exec sleep 600"],
       title="sleep", log=log, deadline_s=600, progress=Progress())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_ends_with_the_process_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    mark = tmp_path / "pid"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(mark), str(tmp_path / "log")], env=os.environ | {"PYTHONPATH": str(E2E)}
    )
    try:
        wait.until("the program runs", lambda: None if mark.exists() else "no pid", deadline_s=30)
        program = processes.identify(int(mark.read_text()))
        assert program is not None
    finally:
        caller.send_signal(how)
        caller.wait(30)
    wait.until("it ends", lambda: "it lives" if processes.alive(program) else None, deadline_s=10)


def test_a_failure_carries_the_logs_end(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"(?s)greet: sh failed with exit status 3.*hello"):
        stream(
            ["sh", "-c", "echo hello; exit 3"],
            title="greet",
            log=tmp_path / "log",
            deadline_s=30,
            progress=Progress(),
        )


def test_a_deadline_names_the_step_that_ran_and_ends_the_whole_group(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    command = f"echo stage two; sleep 600 & echo $! > {mark}; wait"
    with pytest.raises(DeadlineError, match="it was at: stage two"):
        stream(["sh", "-c", command], title="wait", log=tmp_path / "log", deadline_s=1, progress=Progress())
    left = processes.identify(int(mark.read_text()))
    if left is not None:
        wait.until("it ends", lambda: "it lives" if processes.alive(left) else None, deadline_s=10)
