"""The nursery and the workers: `python -m quire.engine.grammar.worker FD`, started by `client.Grammars` only.

The nursery reads the tokenizer, then forks one worker for each grammar, tells how those ended that did not end by themselves, and
ends when the engine is gone. It has one thread and never compiles anything, so a fork of it is sound. A worker compiles, then turns tokens into masks. It sets an alarm of
the kernel on its own CPU time before each piece of work: where that goes off it simply ends, in whatever code it is. Memory is
limited the same way. The engine sees its socket close; where the engine closes it, a worker that compiles ends the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

from quire.engine.grammar import protocol as say
from quire.errors import QuireError
from quire.structured import Reason

if TYPE_CHECKING:
    import llguidance


@dataclass
class Nursery:
    """What workers inherit: the vocabulary, or why there is none."""

    settings: say.Settings
    tokens: llguidance.LLTokenizer | None = None
    eos_token_ids: list[int] | None = None
    failure: str | None = None

    def prepare(self) -> None:
        """Read the tokenizer; a failure is what every grammar will hear."""
        from quire.models.source import resolve
        from quire.text import load_tokenizer

        settings = self.settings
        try:
            from quire.engine.grammar import library

            tokenizer = load_tokenizer(
                resolve(settings.tokenizer, revision=settings.revision, tokenizer_only=True).path
            )
            ends = dict.fromkeys([*tokenizer.eos_ids, *settings.eos_token_ids])
            self.eos_token_ids = [i for i in ends if 0 <= i < settings.vocab_size]
            if not self.eos_token_ids:
                self.failure = "the model has no end-of-sequence token, without which structured outputs cannot end"
                return
            self.tokens = library.vocabulary(tokenizer, settings.vocab_size, self.eos_token_ids)
        except (QuireError, ImportError, OSError, ValueError) as exc:
            self.failure = f"structured outputs are not available: {exc}"

    def raise_workers(self, control: socket.socket) -> None:
        """Fork a worker for each socket that comes, until the engine is gone."""
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # for the pipe's sake
        numbers: dict[int, int] = {}
        for number in itertools.count(1):
            while control.fileno() not in select.select([control.fileno(), woken], [], [])[0]:
                os.read(woken, 4096)
                _bury(control, numbers)
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            try:
                pid = os.fork()
            except OSError:
                control.sendall(say.ENDING.pack(number, say.NOT_BORN))
            else:
                if pid == 0:
                    for descriptor in (control.detach(), woken, wake):
                        os.close(descriptor)
                    _work(self, descriptors[0])
                numbers[pid] = number
            os.close(descriptors[0])


def _bury(control: socket.socket, numbers: dict[int, int]) -> None:
    """Tell how the workers ended that did not end by themselves."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = found
            code = os.waitstatus_to_exitcode(status)
            if code not in (0, -signal.SIGIO):
                control.sendall(say.ENDING.pack(numbers[pid], code))
            del numbers[pid]


def _work(nursery: Nursery, descriptor: int) -> NoReturn:
    """Be a worker, in a process just forked."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _hush()
    _first_to_go()
    code = say.CRASHED
    try:
        Worker(nursery, Connection(descriptor)).run()
        code = 0
    except MemoryError:
        code = say.OUT_OF_MEMORY
    finally:
        os._exit(code)


@dataclass
class _Session:
    matcher: llguidance.LLMatcher
    num_tokens: int = 0
    spent_s: float = 0.0


class Worker:
    """One grammar and the sequences that use it."""

    def __init__(self, nursery: Nursery, connection: Connection) -> None:
        self._nursery = nursery
        self._limits = nursery.settings.limits
        self._connection = connection
        self._sessions: dict[int, _Session] = {}
        self._inherited_bytes = _address_space()
        self._mask_bytes = say.mask_words(nursery.settings.vocab_size) * 4

    def run(self) -> None:
        """Serve until the engine closes its end."""
        with contextlib.suppress(EOFError, ConnectionError):
            self._send(say.Born())
            request = say.compile_decoder.decode(self._connection.recv_bytes())
            root = self._compile(request)
            while root is not None:
                self._step(say.step_decoder.decode(self._connection.recv_bytes()), root)

    def _compile(self, request: say.Compile) -> llguidance.LLMatcher | None:
        nursery = self._nursery
        if nursery.tokens is None or nursery.eos_token_ids is None:
            message = nursery.failure or "structured outputs are not available"
            self._send(say.Refused(message, Reason.UNAVAILABLE))
            return None
        from quire.engine.grammar.library import GrammarError, compile_grammar

        _limit_address_space(self._inherited_bytes + self._limits.memory_bytes - say.OWN_BYTES)
        try:
            with _alarm(self._limits.compile_cpu_s), _until_closed(self._connection):
                root = compile_grammar(nursery.tokens, request)
        except GrammarError as exc:
            self._send(say.Refused(str(exc), Reason.INVALID))
            return None
        self._send(say.Compiled(nursery.eos_token_ids, root.get_grammar_warnings(), self._held_bytes()))
        return root

    def _step(self, step: say.Step, root: llguidance.LLMatcher) -> None:
        for session in step.ended:
            self._sessions.pop(session, None)
        size = self._mask_bytes
        masks = bytearray(size * len(step.rows))
        faults: dict[int, str] = {}
        for place, row in enumerate(step.rows):
            try:
                masks[place * size : (place + 1) * size] = self._mask(row, root)
            except _RowError as exc:
                faults[place] = str(exc)
        self._send(say.Faults(faults, self._held_bytes()))
        self._connection.send_bytes(masks)

    def _mask(self, row: say.Tokens, root: llguidance.LLMatcher) -> bytes:
        session = self._sessions.get(row.session)
        if session is None:
            session = self._sessions[row.session] = _Session(root.deep_copy())
        if session.num_tokens != row.known:
            raise _RowError(f"{row.known} tokens should be known, but {session.num_tokens} are")
        from quire.engine.grammar.library import mask_of, one_line

        began = time.process_time()
        matcher, limits = session.matcher, self._limits
        with _alarm(limits.mask_cpu_s + limits.mean_cpu_s * len(row.new)):
            if row.new:
                matcher.consume_tokens(row.new)
            mask = mask_of(matcher, self._mask_bytes)
        session.num_tokens += len(row.new)
        session.spent_s += time.process_time() - began
        if matcher.is_error():
            raise _RowError(f"the grammar is too complex here: {one_line(matcher.get_error())}")
        if session.spent_s > limits.mask_cpu_s + limits.mean_cpu_s * session.num_tokens:
            mean_ms = session.spent_s * 1e3 / max(session.num_tokens, 1)
            raise _RowError(
                f"the grammar is too complex: it needs {mean_ms:.3g} ms of CPU a token, {limits.mean_cpu_s * 1e3:g} are allowed"
            )
        return mask

    def _held_bytes(self) -> int:
        return say.OWN_BYTES + max(_address_space() - self._inherited_bytes, 0)

    def _send(self, message: say.Born | say.Compiled | say.Refused | say.Faults) -> None:
        self._connection.send_bytes(say.encoder.encode(message))


class _RowError(Exception):
    """One row gets no mask."""


@contextlib.contextmanager
def _alarm(cpu_s: float) -> Iterator[None]:
    """End this process when it uses more CPU time than this; SIGPROF is left to do what it does by default."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


@contextlib.contextmanager
def _until_closed(connection: Connection) -> Iterator[None]:
    """End this process when the engine closes its end: it says nothing meanwhile, so what makes the socket readable is its end. SIGIO
    is left to do what it does by default."""
    descriptor = connection.fileno()
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if connection.poll():  # before there was a signal for it
            raise EOFError
        yield
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _address_space() -> int:
    """Bytes of this process; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 0


def _limit_address_space(num_bytes: int) -> None:
    if _address_space():
        with contextlib.suppress(OSError, ValueError):
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (num_bytes, hard))


def _first_to_go() -> None:
    """Where memory runs out, the kernel ends a worker and not the engine."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _hush() -> None:
    """A panic of the library is an answer to the user; its text on standard error would be the user's in our log."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def main(arguments: list[str]) -> int:
    """Be the nursery on the inherited socket whose descriptor is given."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle; we end when the engine does
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # an alarm is no crash
    control = socket.socket(fileno=int(arguments[0]))
    length = int.from_bytes(_exactly(control, 4))
    nursery = Nursery(say.settings_decoder.decode(_exactly(control, length)))
    nursery.prepare()
    with contextlib.suppress(ConnectionError):  # the engine is gone
        nursery.raise_workers(control)
    return 0


def _exactly(control: socket.socket, count: int) -> bytes:
    """So many bytes and none of what follows, which has descriptors attached."""
    data = b""
    while len(data) < count:
        more = control.recv(count - len(data))
        if not more:
            sys.exit(0)
        data += more
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
