"""Start processes that outlive this one, and end exactly those: a process is its pid, its start time and this boot.

Nothing is ever looked up or ended by name; other programs on the machine may be called the same.
"""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import CommandError, DeadlineError
from cluster.run import log_tail

DAEMON_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "HOME": "/root",
}
"""Daemons get this and nothing of the caller's: a proxy variable would send the cluster's own traffic out."""


@dataclass(frozen=True)
class Process:
    """Identity of a process within one boot of the machine."""

    pid: int
    start: int
    """Clock ticks since boot (field 22 of /proc/PID/stat)."""


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None when there is none or it is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else Process(pid, int(fields[19]))


def alive(process: Process) -> bool:
    return identify(process.pid) == process


def children(pid: int) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        return ()


def end(process: Process, signal_number: int = signal.SIGKILL, deadline_s: float = 20.0) -> None:
    """Signal the process if it is still the recorded one, and wait until it is gone. Nothing happens when it is gone already."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if not alive(process):  # checked after the handle was taken: the pid cannot change hands any more
            return
        signal.pidfd_send_signal(handle, signal_number)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        if not poll.poll(deadline_s * 1000):
            raise DeadlineError(
                f"process {process.pid} did not end within {deadline_s:.0f} s of {signal.Signals(signal_number).name}"
            )
    finally:
        os.close(handle)


_DETACH = 'echo $$; exec "$@" </dev/null >>"$LOG" 2>&1'


def detach(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] = DAEMON_ENV, pass_fds: Sequence[int] = ()
) -> Process:
    """Run the command in its own session, parented by init, its output appended to the log.

    The caller need not reap it, and a signal to the caller's terminal does not reach it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            ["setsid", "--fork", "sh", "-c", _DETACH, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**env, "LOG": str(log)},
            pass_fds=pass_fds,
            text=True,
            timeout=30,
            check=True,
        )
        process = identify(int(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CommandError(f"`{' '.join(argv)}` could not be started: {error}") from error
    if process is None:
        raise CommandError(f"`{' '.join(argv)}` ended at once; its log {log} ends:\n{log_tail(log)}")
    return process
