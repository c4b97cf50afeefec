"""All grammars of an engine: start them, keep a bounded number, notice their ends. One thread."""

from __future__ import annotations

import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from multiprocessing import connection
from typing import Any, Protocol

from quire.engine.grammar import protocol as say
from quire.engine.grammar.handle import Grammar, Session
from quire.engine.grammar.nursery import Nursery
from quire.request import GrammarStats, SamplingParams
from quire.structured import Reason, StructuredOutput

GRAMMAR, SESSION, AGAIN = "grammar", "grammar session", "grammar again"
"""Keys of a sequence's scratch: its grammar, which siblings share; its own session with it; that it was lost and made anew."""


class Holder(Protocol):
    """A sequence."""

    params: SamplingParams
    scratch: dict[str, Any]


class Grammars:
    """Grammars by content. The nursery starts with the first one, and anew when it has died."""

    def __init__(self, settings: say.Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.limits = settings.limits
        self._clock = clock
        self._num_compilations = 0
        self._failures: Counter[str] = Counter()
        self._compile_s: list[float] = []
        self._mask_s: list[float] = []
        self._kept: OrderedDict[tuple[str, str], Grammar] = OrderedDict()
        self._known: weakref.WeakValueDictionary[tuple[str, str], Grammar] = weakref.WeakValueDictionary()
        self._begun: weakref.WeakSet[Grammar] = weakref.WeakSet()
        self._queue: deque[weakref.ref[Grammar]] = deque()
        self._compiling: list[Grammar] = []
        self._nursery: Nursery | None = None

    @property
    def num_alive(self) -> int:
        """Workers."""
        return sum(grammar.alive for grammar in self._begun)

    @property
    def taken_bytes(self) -> int:
        """Memory that workers hold, or may come to hold while they compile."""
        return sum(grammar.taken_bytes for grammar in self._begun)

    def of(self, sequence: Holder) -> Grammar:
        """The grammar of a sequence, which keeps it alive. One whose worker was killed is made anew, once: what a worker has been
        told can be told again."""
        scratch = sequence.scratch
        grammar: Grammar | None = scratch.get(GRAMMAR)
        lost = grammar is not None and grammar.failure is not None and grammar.failure.reason is Reason.LOST
        if grammar is None or (lost and AGAIN not in scratch):
            if lost:
                scratch[AGAIN] = True
                scratch.pop(SESSION, None)
            assert sequence.params.structured_outputs is not None
            grammar = scratch[GRAMMAR] = self.get(sequence.params.structured_outputs, urgent=lost)
        return grammar

    def get(self, output: StructuredOutput, *, urgent: bool = False) -> Grammar:
        """The grammar of an output: there, on its way, or known to fail. Until it is settled only its holders keep it.

        urgent: sequences that run may wait for it; so they may for one that was lost.
        """
        grammar = self._known.get(output.key)
        if grammar is not None:
            self._advance([grammar])
        if grammar is None or (grammar.failure is not None and not grammar.lasting):
            urgent |= grammar is not None and grammar.failure is not None and grammar.failure.reason is Reason.LOST
            grammar = self._known[output.key] = Grammar(output, self.limits, urgent=urgent)
            if not self.limits.total_bytes:
                message = "structured outputs are not available: the memory plan leaves too little for them"
                self._fail(grammar, Reason.UNAVAILABLE, message)
            elif len(output.spec.encode()) > self.limits.spec_bytes:
                self._fail(
                    grammar, Reason.INVALID, f"it must be at most {self.limits.spec_bytes} bytes (--max-grammar-size)"
                )
            else:
                if urgent:
                    self._queue_first(grammar)
                else:
                    self._queue.append(weakref.ref(grammar))
                self._start_compiling()
        elif output.key in self._kept:
            self._kept.move_to_end(output.key)
        return grammar

    def poll(self, wait_s: float = 0.0) -> None:
        """Take in verdicts, waiting up to wait_s for a first one, and start what may be compiled now."""
        _wait(self._compiling, wait_s)
        self._advance(self._compiling)
        for grammar in self._compiling:
            if grammar.settled:
                self._num_compilations += 1
                self._compile_s.append(self._clock() - grammar.began_s)
                self._keep(grammar)
        self._compiling = [grammar for grammar in self._compiling if not grammar.settled]
        self._start_compiling()

    def ask(self, wanted: Mapping[Grammar, list[tuple[Session, list[int]]]]) -> None:
        """Have masks computed, for sessions after the tokens they have generated since the last time."""
        now = self._clock()
        for grammar, sessions in wanted.items():
            grammar.ask(sessions, now)

    def collect(self, grammars: Collection[Grammar], wait_s: float) -> None:
        """Take in the masks of these grammars, waiting up to wait_s seconds for all of them."""
        began = self._clock()
        self._advance(grammars)
        while busy := [grammar for grammar in grammars if grammar.busy]:
            left_s = began + wait_s - self._clock()
            if left_s <= 0:
                break
            _wait(busy, left_s)
            self._advance(busy)
        self._mask_s.append(self._clock() - began)
        self._bound_memory()

    def failed(self, reason: Reason) -> None:
        """Count a sequence that its grammar failed alone."""
        self._failures[reason] += 1

    def stats(self, *, drain: bool) -> GrammarStats:
        """See `Gate.stats`."""
        compile_s, mask_s = (self._compile_s, self._mask_s) if drain else ([], [])
        if drain:
            self._compile_s, self._mask_s = [], []
        return GrammarStats(
            num_live=self.num_alive,
            num_compilations=self._num_compilations,
            failures=dict(self._failures),
            compile_s=compile_s,
            mask_s=mask_s,
        )

    def close(self) -> None:
        """End the nursery; workers end with their grammars."""
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None

    def _advance(self, grammars: Iterable[Grammar]) -> None:
        now = self._clock()
        for grammar in grammars:
            failed = grammar.failure is not None
            grammar.advance(now)
            if not failed and grammar.failure is not None:
                self._failures[grammar.failure.reason] += 1

    def _fail(self, grammar: Grammar, reason: Reason, message: str) -> None:
        grammar.fail(reason, message)
        self._failures[reason] += 1

    def _keep(self, grammar: Grammar) -> None:
        """Remember it for later requests, in place of the one that was not asked for longest."""
        if grammar.failure is not None and not grammar.lasting:
            return
        self._kept[grammar.output.key] = grammar
        while len(self._kept) > self.limits.num_grammars:
            self._kept.popitem(last=False)

    def _queue_first(self, grammar: Grammar) -> None:
        """It is compiled next, after those that are urgent where it is not.

        One that is made anew takes the room of the lost one before anybody can get it who needs the places of its sequences.
        """
        ahead = (
            [] if grammar.urgent else [other for ref in self._queue if (other := ref()) is not None and other.urgent]
        )
        self._queue.insert(len(ahead), weakref.ref(grammar))

    def _start_compiling(self) -> None:
        """Few at a time: what explodes must not take all CPUs from the engine. In turn: nobody is overtaken for want of room."""
        while self._queue and len(self._compiling) < self.limits.num_compiling:
            grammar = self._queue[0]()
            if grammar is not None and not self._has_room():
                if self._compiling or not grammar.urgent:
                    return
                # Who has the room may be waiting for the places of its sequences.
                message = (
                    "the process that held the grammar of this request was killed, and there is no room for another"
                )
                self._fail(grammar, Reason.NO_ROOM, message)
            self._queue.popleft()
            # None: nobody waits for it any more
            if grammar is not None and not grammar.settled and self._start(grammar):
                self._compiling.append(grammar)

    def _has_room(self) -> bool:
        """Whether one more may be compiled, whatever it comes to hold; workers that nobody uses are ended for it."""
        limits = self.limits

        def full() -> bool:
            return self.num_alive >= limits.num_grammars or self.taken_bytes + limits.memory_bytes > limits.total_bytes

        self._end_unused(full)
        return not full()

    def _bound_memory(self) -> None:
        """Where grammars have grown to more than all may hold together, workers that nobody uses are ended; then what compiles
        waits again; then those fail that have grown most, and their requests are not at fault."""
        most = self.limits.total_bytes
        self._end_unused(lambda: self.taken_bytes > most)
        while self.taken_bytes > most:
            if compiling := [grammar for grammar in self._compiling if not grammar.settled]:
                self._withdraw(next((grammar for grammar in reversed(compiling) if not grammar.urgent), compiling[-1]))
                continue
            alive = [grammar for grammar in self._begun if grammar.alive]
            grown = max(alive, key=lambda grammar: (grammar.grown_bytes, grammar.taken_bytes))
            message = (
                f"all grammars together may hold {most >> 20} MiB of memory, and that of this request has grown most"
            )
            self._fail(grown, Reason.NO_ROOM, message)

    def _withdraw(self, grammar: Grammar) -> None:
        self._compiling.remove(grammar)
        grammar.withdraw()
        self._queue_first(grammar)

    def _end_unused(self, wanted: Callable[[], bool]) -> None:
        """End kept workers that nobody uses, the longest unused first, while that is wanted."""
        for key in list(self._kept):
            if not wanted():
                return
            if not self._kept[key].alive:
                continue
            used = weakref.ref(self._kept.pop(key))
            if (grammar := used()) is not None:
                self._kept[key] = grammar

    def _start(self, grammar: Grammar) -> bool:
        """Have it compiled; False where there is nobody to do that."""
        try:
            if self._nursery is None or self._nursery.ended:
                self.close()
                self._nursery = Nursery(self.settings)
            worker = self._nursery.worker()
        except OSError as exc:  # no process, descriptor or memory is to be had, or it was killed just now
            self._fail(grammar, Reason.LOST, f"there is no process that builds grammars ({exc.strerror or exc})")
            return False
        self._begun.add(grammar)
        grammar.begin(worker, self._clock())
        return True


def _wait(grammars: Iterable[Grammar], wait_s: float) -> None:
    links = [link for grammar in grammars if (link := grammar.waiting_on) is not None]
    if links and wait_s > 0:
        connection.wait(dict.fromkeys(links), wait_s)  # several may wait for the nursery's word
