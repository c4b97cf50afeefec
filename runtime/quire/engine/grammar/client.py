"""The engine's end of the grammar workers: start them, keep a bounded number, notice their ends. Never waits unasked.

One thread. `Grammar` is a handle: whoever holds one keeps its worker alive, and a worker ends with the last holder.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from multiprocessing import connection
from multiprocessing.connection import Connection

import msgspec
import numpy as np
import numpy.typing as npt

from quire.engine.grammar import protocol as say
from quire.structured import StructuredOutput

SESSION = "grammar"
"""Key of a row's session in its scratch."""
NURSERY_ENDED = "the process that builds grammars ended; its last lines are in the log above"
NOT_READY = "the grammar of this request is no longer there; send it again"

_log = logging.getLogger(__name__)


class Grammar:
    """One grammar, being compiled, ready, or failed for good (`error`)."""

    def __init__(self, output: StructuredOutput) -> None:
        self.output = output
        self.error: str | None = None
        self.lasting = True
        """Whether `error` would be the same the next time."""
        self.eos_token_ids: tuple[int, ...] = ()
        self.ended: list[int] = []
        """Sessions the worker may forget; told with the next step."""
        self.deadline_s = 0.0
        self._connection: Connection | None = None
        self._ready = False
        self._num_sessions = 0

    @property
    def settled(self) -> bool:
        """True when it is ready or has failed."""
        return self._ready or self.error is not None

    @property
    def waiting_on(self) -> Connection | None:
        """The connection on which the verdict of its compilation will come."""
        return None if self.settled else self._connection

    def begin(self, link: Connection, deadline_s: float) -> None:
        """A worker listens at the other end."""
        self._connection, self.deadline_s = link, deadline_s
        try:
            link.send_bytes(say.encoder.encode(say.Compile(self.output.kind, self.output.spec)))
        except OSError:
            self.fail(NURSERY_ENDED, lasting=False)

    def settle(self, limits: say.Limits) -> None:
        """Read the verdict that is there."""
        assert self._connection is not None
        try:
            verdict = say.verdict_decoder.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            self.fail(
                f"the grammar is too complex: compiling it takes more than {limits.compile_cpu_s:g} s of CPU "
                f"or {limits.memory_bytes >> 20} MiB of memory"
            )
            return
        if isinstance(verdict, say.Refused):
            self.fail(verdict.message, lasting=verdict.lasting)
            return
        self._ready, self.eos_token_ids = True, tuple(verdict.eos_token_ids)
        for warning in verdict.warnings:
            _log.warning("a grammar was compiled with a warning: %s", warning)

    def fail(self, error: str, *, lasting: bool = True) -> None:
        """It cannot be used (any more); its worker ends."""
        self.error, self.lasting = error, lasting
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def session(self) -> Session:
        """A new sequence, which has generated nothing."""
        self._num_sessions += 1
        return Session(self, self._num_sessions)

    def ask(self, rows: list[say.Tokens]) -> None:
        """Send the worker off to compute masks; `answer` waits for them. Does nothing where it has failed."""
        if self._connection is None or not self._ready:
            return
        step = say.Step(rows, self.ended)
        self.ended = []
        with contextlib.suppress(OSError):  # `answer` finds the same
            self._connection.send_bytes(say.encoder.encode(step))

    def answer(self, masks: npt.NDArray[np.uint8], limits: say.Limits) -> dict[int, str]:
        """Fill masks [R, 4 * words] for the rows asked for; why a row has none, by its place."""
        if self._connection is not None and self._ready:
            try:
                if self._connection.poll(limits.mask_wall_s):
                    faults = say.faults_decoder.decode(self._connection.recv_bytes())
                    self._connection.recv_bytes_into(masks.reshape(-1).data)
                    return faults.by_place
                self.fail(f"the grammar is too complex: a step waited {limits.mask_wall_s:g} s for it")
            except (EOFError, OSError):
                self.fail(
                    f"the grammar is too complex: one token takes more than {limits.mask_cpu_s:g} s of CPU "
                    f"or {limits.memory_bytes >> 20} MiB of memory"
                )
        return dict.fromkeys(range(len(masks)), self.error or NOT_READY)


class Session:
    """What a worker knows of one sequence: the first `known` generated tokens. It forgets them with this object.

    owner: `id()` of the row it belongs to, so that a copy of a row gets a session of its own.
    """

    def __init__(self, grammar: Grammar, number: int) -> None:
        self.grammar = grammar
        self.number = number
        self.known = 0
        self.owner: int | None = None
        weakref.finalize(self, _forget, weakref.ref(grammar), number)


def _forget(grammar: weakref.ref[Grammar], number: int) -> None:
    if (found := grammar()) is not None:
        found.ended.append(number)


class Grammars:
    """All grammars of an engine, by content.

    `get` starts what is not there, `poll` moves compilations on. The nursery starts with the first grammar, and anew when it
    has died.
    """

    def __init__(self, settings: say.Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.limits = settings.limits
        self._clock = clock
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[tuple[str, str], Grammar] = weakref.WeakValueDictionary()
        self._queue: deque[weakref.ref[Grammar]] = deque()
        self._compiling: list[Grammar] = []
        self._nursery: _Nursery | None = None

    def get(self, output: StructuredOutput) -> Grammar:
        """The grammar of an output: there, on its way, or known to fail. Until it is settled only its holders keep it."""
        grammar = self._alive.get(output.key)
        if grammar is None or (grammar.error is not None and not grammar.lasting):
            grammar = self._alive[output.key] = Grammar(output)
            self._queue.append(weakref.ref(grammar))
            self._start_compiling()
        elif output.key in self._kept:
            self._kept.move_to_end(output.key)
        return grammar

    def poll(self, wait_s: float = 0.0) -> None:
        """Take in verdicts, waiting up to wait_s for a first one, and start what may be compiled now."""
        links = [link for grammar in self._compiling if (link := grammar.waiting_on) is not None]
        ready = connection.wait(links, wait_s) if links else []
        now = self._clock()
        for grammar in self._compiling:
            if grammar.waiting_on in ready:
                grammar.settle(self.limits)
                if grammar.error is not None and self._nursery is not None and self._nursery.ended:
                    grammar.error, grammar.lasting = NURSERY_ENDED, False
            elif now >= grammar.deadline_s and not grammar.settled:
                grammar.fail(f"the grammar was not compiled within {self.limits.compile_wall_s:g} s", lasting=False)
            if grammar.settled:
                self._keep(grammar)
        self._compiling = [grammar for grammar in self._compiling if not grammar.settled]
        self._start_compiling()

    def close(self) -> None:
        """End the nursery; workers end with their grammars."""
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _keep(self, grammar: Grammar) -> None:
        """Remember it for later requests, in place of the one that was not asked for longest."""
        self._kept[grammar.output.key] = grammar
        while len(self._kept) > self.limits.num_grammars:
            self._kept.popitem(last=False)

    def _start_compiling(self) -> None:
        """Few at a time: what explodes must not take all CPUs from the engine."""
        while self._queue and len(self._compiling) < self.limits.num_compiling:
            grammar = self._queue.popleft()()
            if grammar is not None:  # else nobody waits for it any more
                self._start(grammar)
                self._compiling.append(grammar)

    def _start(self, grammar: Grammar) -> None:
        if self._nursery is None or self._nursery.ended:
            self.close()
            self._nursery = _Nursery(self.settings)
        try:
            link = self._nursery.worker()
        except OSError:
            grammar.fail(NURSERY_ENDED, lasting=False)
            return
        grammar.begin(link, self._clock() + self.limits.compile_wall_s)


class _Nursery:
    """The process that forks workers. It ends when this object does, and with the engine."""

    def __init__(self, settings: say.Settings) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "quire.engine.grammar.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._control = ours
        self.close = weakref.finalize(self, _end, ours, self._process)
        frame = msgspec.msgpack.encode(settings)
        ours.sendall(len(frame).to_bytes(4) + frame)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def worker(self) -> Connection:
        """Our end of a socket at whose other end a worker will be; raises OSError where the process is gone."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            return Connection(ours.detach())


def _end(control: socket.socket, process: subprocess.Popen[bytes]) -> None:
    control.close()
    process.kill()
    process.wait()
