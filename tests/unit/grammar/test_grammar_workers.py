"""Processes of grammars, without an engine around them: what they tell of themselves, and when they end."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import pytest

from quire.engine.grammar.client import Grammars
from quire.engine.grammar.protocol import OWN_BYTES, Limits, Settings
from quire.engine.grammar.worker import _until_closed
from quire.structured import structured_output
from quire_testing.structured import EXPLOSIVE
from tiny_text import VOCAB_SIZE

MIB = 1 << 20
LIMITS = Limits(
    compile_cpu_s=600,
    mask_cpu_s=9,
    mean_cpu_s=9,
    memory_bytes=4096 * MIB,
    total_bytes=3 * 4096 * MIB,
    num_compiling=2,
    num_grammars=9,
    spec_bytes=1 << 20,
)
"""Long and much enough that nothing which explodes ends by itself while a test looks on."""


@pytest.fixture
def grammars(folder: Path) -> Iterator[Grammars]:
    found = Grammars(
        Settings(tokenizer=str(folder), revision="main", vocab_size=VOCAB_SIZE, eos_token_ids=[0], limits=LIMITS)
    )
    yield found
    found.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def nursery_of(grammars: Grammars) -> int:
    assert grammars._nursery is not None
    return grammars._nursery.pid


def ended(*processes: int, within_s: float) -> bool:
    """Whether processes, by their pidfd, end."""
    left = set(processes)
    while left and (found := select.select(left, [], [], within_s)[0]):
        left -= set(found)
    return not left


def test_a_worker_tells_what_it_holds_when_it_has_compiled(grammars: Grammars) -> None:
    large = grammars.get(structured_output(choice=[f"one of many {i}" for i in range(3000)]))
    small = grammars.get(structured_output(regex="a"))
    while not (large.settled and small.settled):
        grammars.poll(1.0)
    assert large.failure is small.failure is None
    assert OWN_BYTES <= small.taken_bytes < 16 * MIB
    assert small.taken_bytes + MIB < large.taken_bytes < 64 * MIB
    assert grammars.taken_bytes == large.taken_bytes + small.taken_bytes


def test_what_is_to_wait_again_stops_compiling_at_once_and_can_be_compiled_later(grammars: Grammars) -> None:
    first = grammars.get(structured_output(regex="a"))
    while not first.settled:
        grammars.poll(1.0)
    [other] = children(nursery_of(grammars))
    bad = grammars.get(structured_output(json=EXPLOSIVE))
    grammars.poll()
    [pid] = until_born(grammars, {other})
    process = os.pidfd_open(pid)
    until_busy(pid)
    grammars._withdraw(bad)
    assert ended(process, within_s=60)
    os.close(process)
    assert (bad.alive, bad.settled) == (False, False)
    grammars.poll()
    assert bad.alive
    until_born(grammars, {other, pid})
    assert (first.alive, first.failure) == (True, None)


def until_born(grammars: Grammars, known: set[int]) -> set[int]:
    """The next workers."""
    while not (born := set(children(nursery_of(grammars))) - known):
        pass
    return born


def until_busy(pid: int) -> None:
    """It has used a tenth of a second of CPU time."""
    while int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11]) < os.sysconf("SC_CLK_TCK") // 10:
        pass


def test_while_it_compiles_it_notices_an_end_that_came_before_and_nothing_afterwards() -> None:
    def watched(end: Connection) -> bool:
        return bool(fcntl.fcntl(end.fileno(), fcntl.F_GETFL) & os.O_ASYNC)

    ours, theirs = Pipe()
    with theirs:
        with ours:
            with _until_closed(theirs):
                assert watched(theirs)
            assert not watched(theirs)
        with pytest.raises(EOFError), _until_closed(theirs):
            raise AssertionError("it went on")


ENGINE = """
import sys
from quire.engine.grammar.client import Grammars
from quire.engine.grammar.protocol import Settings
from quire.structured import structured_output
import msgspec
grammars = Grammars(msgspec.json.decode(sys.argv[1], type=Settings))
ready = grammars.get(structured_output(regex="a"))
while not ready.settled:
    grammars.poll(1.0)
compiling = grammars.get(structured_output(json=sys.argv[2]))
print(grammars._nursery.pid, flush=True)
sys.stdin.read()
"""


def test_nobody_outlives_the_engine_however_it_ends_and_whatever_is_compiled(grammars: Grammars) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, *(msgspec.json.encode(one).decode() for one in (grammars.settings, EXPLOSIVE))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with engine:
        assert engine.stdout is not None
        nursery = int(engine.stdout.readline())
        while len(children(nursery)) < 2:
            pass
        until_busy(max(children(nursery)))
        processes = [os.pidfd_open(pid) for pid in (nursery, *children(nursery))]
        assert not ended(*processes, within_s=0)
        engine.send_signal(signal.SIGKILL)
        assert ended(*processes, within_s=60)
        for process in processes:
            os.close(process)
