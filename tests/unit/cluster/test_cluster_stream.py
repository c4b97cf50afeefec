"""Promise: a long program ends at its deadline, with its caller's process, and says why it failed; all that it started ends with it."""

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
# The program, a child of it, and one that left for a session of its own and whose parent is gone.
FAMILY = """
sleep 600 & child=$!
setsid sh -c "echo \\$\\$ > {mark}.away; exec sleep 600" &
until [ -s {mark}.away ]; do :; done
echo $$ $child $(cat {mark}.away) > {mark}.new && mv {mark}.new {mark}
"""
CALLER = """
import sys
from pathlib import Path
from cluster.progress import Progress
from cluster.stream import stream
stream(["sh", "-c", sys.argv[1]], title="sleep", log=Path(sys.argv[2]), deadline_s=600, progress=Progress())
"""


def family(mark: Path) -> str:
    """A command that starts them all, and then writes their pids."""
    return FAMILY.format(mark=mark)


def members(mark: Path) -> list[processes.Process]:
    """Those that live. A pid that is free or belongs to a zombie has none."""
    found = [processes.identify(int(pid)) for pid in mark.read_text().split()]
    return [process for process in found if process is not None]


def no_longer(who: list[processes.Process]) -> None:
    """Wait until none of them lives."""

    def left() -> str | None:
        alive = [process.pid for process in who if processes.alive(process)]
        return f"{alive} live" if alive else None

    wait.until("all end", left, deadline_s=20)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_all_below_the_program_ends_with_the_process_that_started_it(tmp_path: Path, how: signal.Signals) -> None:
    mark = tmp_path / "pids"
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, f"{family(mark)} wait", str(tmp_path / "log")],
        env=os.environ | {"PYTHONPATH": str(E2E)},
    )
    try:
        wait.until("the programs run", lambda: None if mark.exists() else "no pids", deadline_s=60)
        who = members(mark)
        assert len(who) == 3
    finally:
        caller.send_signal(how)
        caller.wait(30)
    no_longer(who)


def test_a_failure_carries_the_logs_end(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"(?s)greet: sh failed with exit status 3.*hello"):
        stream(
            ["sh", "-c", "echo hello; exit 3"],
            title="greet",
            log=tmp_path / "log",
            deadline_s=30,
            progress=Progress(),
        )


@pytest.mark.parametrize(
    ("end", "deadline_s", "error", "said"),
    [
        ("echo stage two; wait", 15, DeadlineError, "it was at: stage two"),
        ("kill -KILL $$", 60, CommandError, "exit status 137"),
    ],
    ids=["deadline", "crash"],
)
def test_an_end_before_its_time_says_why_and_leaves_nothing_running(
    tmp_path: Path, end: str, deadline_s: float, error: type[Exception], said: str
) -> None:
    mark = tmp_path / "pids"
    with pytest.raises(error, match=said):
        stream(
            ["sh", "-c", f"{family(mark)} {end}"],
            title="family",
            log=tmp_path / "log",
            deadline_s=deadline_s,
            progress=Progress(),
        )
    assert members(mark) == []


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"(?s)exit status 127.*no-such-program: No such file"):
        stream(["no-such-program"], title="run", log=tmp_path / "log", deadline_s=30, progress=Progress())
