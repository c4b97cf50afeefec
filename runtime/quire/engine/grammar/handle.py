"""One grammar as the engine sees it: on its way, ready, or of no use; and what its worker knows of a sequence. Never waits.

`Grammar` is a handle: whoever holds one keeps its worker alive, and a worker ends with the last holder.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from quire.engine.grammar import protocol as say
from quire.engine.grammar.nursery import Worker
from quire.engine.results import Fault
from quire.request import SamplingParams
from quire.structured import Reason, StructuredOutput

SMALL_CHARS = 32_768
"""A socket holds so much of a grammar although its worker does not read yet."""
ENDING_S = 5.0
"""How a worker ended is known this long after its socket has closed, or never."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a grammar is of no use, or was of none to one sequence; message: a sentence without the field's name."""

    reason: Reason
    message: str

    def fault(self, params: SamplingParams) -> Fault:
        """What a request hears whose grammar it is."""
        assert params.structured_outputs is not None
        if self.reason.of_request:
            field = params.structured_outputs.param
            return Fault(f"{field}: {self.message}", field)
        return Fault(f"{self.message}; send the request again", passing=True)


class Session:
    """What a worker knows of one sequence: its first `known` generated tokens, which `mask` follows. It forgets them with this object."""

    def __init__(self, grammar: Grammar, number: int) -> None:
        self.grammar = grammar
        self.number = number
        self.known = 0
        self.mask: npt.NDArray[np.uint8] | None = None
        self.failure: Failure | None = None
        self.asked = False
        weakref.finalize(self, _forget, weakref.ref(grammar), number)


def _forget(grammar: weakref.ref[Grammar], number: int) -> None:
    if (found := grammar()) is not None:
        found.ended.append(number)


class Grammar:
    """See the module. `settled` once it is ready, or has a `failure`. urgent: sequences in the batch may wait for it."""

    def __init__(self, output: StructuredOutput, limits: say.Limits, *, urgent: bool = False) -> None:
        self.output = output
        self.urgent = urgent
        self.failure: Failure | None = None
        self.eos_token_ids: tuple[int, ...] = ()
        self.ended: list[int] = []
        """Sessions the worker may forget; told with the next step."""
        self.began_s = 0.0
        self._limits = limits
        self._compiled_bytes = self._held_bytes = 0
        self._worker: Worker | None = None
        self._died_s: float | None = None
        self._ready = False
        self._num_sessions = 0
        self._asked: list[weakref.ref[Session]] = []
        self._asked_s = 0.0

    @property
    def settled(self) -> bool:
        """True when it is ready or has failed."""
        return self._ready or self.failure is not None

    @property
    def lasting(self) -> bool:
        """True where it has failed for good. What goes wrong in the middle of one answer may go right in the next."""
        return self.failure is not None and self.failure.reason.lasting and not self._ready

    @property
    def alive(self) -> bool:
        """True while it has a worker."""
        return self._worker is not None

    @property
    def taken_bytes(self) -> int:
        """What its worker holds, or may come to hold while it compiles."""
        if self._worker is None:
            return 0
        return self._held_bytes if self._ready else self._limits.memory_bytes

    @property
    def grown_bytes(self) -> int:
        """What its worker has taken since it is ready."""
        return self._held_bytes - self._compiled_bytes

    @property
    def busy(self) -> bool:
        """True while masks are being computed."""
        return self._worker is not None and bool(self._asked)

    @property
    def waiting_on(self) -> Connection | socket.socket | None:
        """What becomes readable when `advance` has something to take in."""
        return None if self._worker is None else self._worker.waiting_on

    def begin(self, worker: Worker, now: float) -> None:
        """Have it compiled."""
        self._worker, self.began_s = worker, now
        if len(self.output.spec) <= SMALL_CHARS:
            self._send(say.Compile(self.output.kind, self.output.spec))

    def session(self) -> Session:
        """A new sequence, which has generated nothing."""
        self._num_sessions += 1
        return Session(self, self._num_sessions)

    def ask(self, rows: list[tuple[Session, list[int]]], now: float) -> None:
        """Have masks computed for sessions, after the tokens they have generated since the last time."""
        if self._worker is None or not self._ready or self._asked:
            return
        tokens = [say.Tokens(session.number, session.known, new) for session, new in rows]
        ended, self.ended = self.ended, []
        for session, new in rows:
            session.known += len(new)
            session.asked, session.mask = True, None
        self._asked, self._asked_s = [weakref.ref(session) for session, _ in rows], now
        self._send(say.Step(tokens, ended))

    def advance(self, now: float) -> None:
        """Take in what the worker has said or how it has ended; give up where it is silent for too long."""
        if self._worker is None:
            return
        try:
            while self._worker is not None and self._worker.link.poll():
                if self._ready:
                    self._take_masks(self._worker.link)
                else:
                    self._settle(self._worker.link)
        except (EOFError, OSError):
            self._bury(now)
        limits = self._limits
        if self._died_s is not None:
            return
        if not self.settled and now >= self.began_s + limits.compile_wall_s:
            self.fail(Reason.TIMEOUT, f"the grammar was not compiled within {limits.compile_wall_s:g} s")
        elif self._asked and now >= self._asked_s + limits.mask_wall_s:
            self.fail(Reason.TIMEOUT, f"the grammar's worker was silent for {limits.mask_wall_s:g} s")

    def fail(self, reason: Reason, message: str) -> None:
        """It cannot be used any more; its worker ends."""
        self.failure = Failure(reason, message)
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def withdraw(self) -> None:
        """Stop compiling it; it may `begin` again."""
        assert not self.settled
        if self._worker is not None:
            self._worker.close()
        self._worker = self._died_s = None

    def _send(self, message: say.Compile | say.Step) -> None:
        assert self._worker is not None
        with contextlib.suppress(OSError):  # `advance` finds the same
            self._worker.link.send_bytes(say.encoder.encode(message))

    def _settle(self, link: Connection) -> None:
        verdict = say.verdict_decoder.decode(link.recv_bytes())
        if isinstance(verdict, say.Born):
            if len(self.output.spec) > SMALL_CHARS:
                self._send(say.Compile(self.output.kind, self.output.spec))
            return
        if isinstance(verdict, say.Refused):
            self.fail(verdict.reason, verdict.message)
            return
        self._ready, self.eos_token_ids = True, tuple(verdict.eos_token_ids)
        self._compiled_bytes = self._held_bytes = verdict.memory_bytes
        for warning in verdict.warnings:
            _log.warning("a grammar was compiled with a warning: %s", warning)

    def _take_masks(self, link: Connection) -> None:
        told = say.faults_decoder.decode(link.recv_bytes())
        faults, self._held_bytes = told.by_place, told.memory_bytes
        masks = np.frombuffer(link.recv_bytes(), dtype=np.uint8).reshape(len(self._asked), -1)
        for place, ref in enumerate(self._asked):
            if (session := ref()) is None:
                continue
            session.asked = False
            if place in faults:
                session.failure = Failure(Reason.TOO_COMPLEX, faults[place])
            else:
                session.mask = masks[place]
        self._asked = []

    def _bury(self, now: float) -> None:
        """The worker's socket is closed: say why, once that is known."""
        assert self._worker is not None
        if self._died_s is None:
            self._died_s = now
            self._worker.died()
        code = self._worker.ending()
        if code is not None or now >= self._died_s + ENDING_S:
            self.fail(*self._cause(say.NOT_BORN if code is None else code))

    def _cause(self, code: int) -> tuple[Reason, str]:
        limits, masks = self._limits, self._ready
        what = "one token" if masks else "compiling it"
        too = "the grammar is too complex: "
        if code == -signal.SIGPROF:
            limit_s = limits.mask_cpu_s if masks else limits.compile_cpu_s
            return Reason.TOO_COMPLEX, f"{too}{what} takes more than {limit_s:g} s of CPU"
        if code in (say.OUT_OF_MEMORY, -signal.SIGABRT):
            return Reason.TOO_COMPLEX, f"{too}{what} takes more than {limits.memory_bytes >> 20} MiB of memory"
        if code in (-signal.SIGSEGV, -signal.SIGBUS):
            return Reason.TOO_COMPLEX, f"{too}it is nested too deeply"
        if code in (say.CRASHED, -signal.SIGILL):
            return Reason.TOO_COMPLEX, f"{too}the grammar library failed on it"
        return Reason.LOST, "the process that held the grammar of this request was killed"
