"""Grammars whose workers' part a test plays: what a worker holds, when it is done and how it ends is said, message by message."""

from __future__ import annotations

import weakref
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from quire.engine.grammar import protocol as say
from quire.engine.grammar.client import Grammars
from quire.engine.grammar.handle import Grammar, Session
from quire.structured import Reason, structured_output

MIB = 1 << 20
VOCAB_SIZE = 64


class EngineEnd:
    """As `nursery.Worker`. It ends with its holder."""

    def __init__(self, link: Connection, worker: ScriptedWorker) -> None:
        self.link = link
        self._worker = worker

    @property
    def waiting_on(self) -> Connection:
        return self.link

    def died(self) -> None:
        pass

    def ending(self) -> int | None:
        return self._worker.code

    def close(self) -> None:
        self.link.close()


class ScriptedWorker:
    """The other end, which a test has."""

    def __init__(self, link: Connection, theirs: Connection) -> None:
        self.code: int | None = None
        self._link, self._theirs = weakref.ref(link), theirs

    @property
    def ended(self) -> bool:
        """Whether the engine has closed its end, or dropped it."""
        link = self._link()
        return link is None or link.closed

    def spec(self) -> str:
        """Of the grammar it is told to compile."""
        return say.compile_decoder.decode(self._theirs.recv_bytes()).spec

    def compiled(self, held_mib: int) -> None:
        """It is ready, and holds so much."""
        self._send(say.Compiled([0], [], held_mib * MIB))

    def refused(self) -> None:
        """There is no such grammar."""
        self._send(say.Refused("it is none", Reason.INVALID))

    def masks(self, held_mib: int) -> say.Step:
        """It answers what it was asked for, and holds so much then."""
        step = say.step_decoder.decode(self._theirs.recv_bytes())
        self._send(say.Faults({}, held_mib * MIB))
        self._theirs.send_bytes(bytes(len(step.rows) * say.mask_words(VOCAB_SIZE) * 4))
        return step

    def killed(self, code: int = -9) -> None:
        """It ends, with this exit code."""
        self.code = code
        self._theirs.close()

    def _send(self, message: say.Compiled | say.Refused | say.Faults) -> None:
        self._theirs.send_bytes(say.encoder.encode(message))


class ScriptedNursery:
    """As `nursery.Nursery`."""

    ended = False

    def __init__(self) -> None:
        self.workers: list[ScriptedWorker] = []

    def worker(self) -> EngineEnd:
        ours, theirs = Pipe()
        self.workers.append(ScriptedWorker(ours, theirs))
        return EngineEnd(ours, self.workers[-1])

    def close(self) -> None:
        pass


class Script:
    """Grammars by name; all may hold total_mib together, and each memory_mib."""

    def __init__(
        self, *, total_mib: int = 192, memory_mib: int = 64, num_compiling: int = 2, num_grammars: int = 16
    ) -> None:
        limits = say.Limits(
            compile_cpu_s=1,
            mask_cpu_s=1,
            mean_cpu_s=1,
            memory_bytes=memory_mib * MIB,
            total_bytes=total_mib * MIB,
            num_compiling=num_compiling,
            num_grammars=num_grammars,
            spec_bytes=1000,
        )
        settings = say.Settings(tokenizer="", revision="", vocab_size=VOCAB_SIZE, eos_token_ids=[0], limits=limits)
        self.grammars = Grammars(settings, clock=lambda: 0.0)
        self._nursery = ScriptedNursery()
        self.grammars._nursery = self._nursery  # type: ignore[assignment]
        self._workers: dict[str, ScriptedWorker] = {}

    def get(self, name: str, *, urgent: bool = False) -> Grammar:
        """What a request holds that asks for it."""
        return self.grammars.get(structured_output(regex=name), urgent=urgent)

    def ready(self, name: str, held_mib: int) -> Grammar:
        """The same, once it is compiled."""
        grammar = self.get(name)
        self.worker(name).compiled(held_mib)
        self.grammars.poll()
        assert grammar.settled
        return grammar

    def worker(self, name: str) -> ScriptedWorker:
        """The newest of a grammar."""
        self._meet()
        return self._workers[name]

    def begun(self) -> set[str]:
        """Names of all that have a worker."""
        self._meet()
        return {name for name, worker in self._workers.items() if not worker.ended}

    def grows(self, name: str, grammar: Grammar, held_mib: int) -> Session:
        """Have a token of it computed, after which its worker holds so much."""
        session = grammar.session()
        self.grammars.ask({grammar: [(session, [])]})
        self.worker(name).masks(held_mib)
        self.grammars.collect([grammar], 0.0)
        return session

    def _meet(self) -> None:
        while self._nursery.workers:
            worker = self._nursery.workers.pop(0)
            self._workers[worker.spec()] = worker
