"""`python keeper.py PARENT PROGRAM ARGUMENT…`: run a program and end whatever it leaves behind. Started by `cluster.stream`.

The end of the process PARENT, a TERM, and a failure of the program are the end of everything below it, also of what
went into a session of its own: orphans become children of this process, because it is their subreaper. What a
program leaves running after a success is its own business. Standard library only, and no import of `cluster`.
"""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_SIGNALS = (signal.SIGTERM, signal.SIGCHLD)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def keep(parent: int, argv: list[str]) -> int:
    """Run to the end; the exit status, 128 + the signal where one ended it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it ended before the line above
        return 128 + signal.SIGTERM
    program = _start(argv)
    status = _wait(program)
    if status != 0:
        _end_all()
    return status


def _start(argv: list[str]) -> int:
    child = os.fork()
    if child == 0:
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)
    return child


def _wait(program: int) -> int:
    """The status of the program, or that of a TERM. Reaps orphans meanwhile."""
    while signal.sigwait(_SIGNALS) != signal.SIGTERM:
        for pid, status in _reap():
            if pid == program:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    return 128 + signal.SIGTERM


def _reap() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _end_all() -> None:
    """Each round kills what it sees and waits for one child of ours; what appears meanwhile is an orphan of the next round."""
    while below := _below(os.getpid()):
        for pid in below:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        os.wait()


def _below(pid: int) -> list[int]:
    """All descendants. A child belongs to the thread that forked it."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            found += [child, *_below(child)]
    return found


if __name__ == "__main__":
    sys.exit(keep(int(sys.argv[1]), sys.argv[2:]))
