"""Scheduler and pools under random requests, forks, swaps, priorities, holds, stalls and aborts: nothing leaks, nothing starves, each request
ends exactly once, every answer is right."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.engine.costs import PreemptionCosts
from quire.engine.policy import POLICIES
from quire.engine.results import NOT_YET, Fault
from quire.engine.sequence import State
from quire.request import FinishReason
from quire_testing.fake_runner import VOCAB, FakeRunner, answer
from quire_testing.scheduling import add, faults, live_sequences, make_scheduler, request, siblings

PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 11, 12, 13, 14], [], [21] * 12]


class Serving(RuleBasedStateMachine):
    """Random life of an engine."""

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(1, 24),
        prefix_caching=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        threshold=st.sampled_from([0, 0, 1, 3]),
        num_swap_blocks=st.sampled_from([0, 3, 8, 40]),
        swap_s_per_block=st.sampled_from([0.0, 0.4, 1.0, 3.0]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        prefix_caching: bool,
        policy: str,
        threshold: int,
        num_swap_blocks: int,
        swap_s_per_block: float,
    ) -> None:
        self.scheduler = make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            budget=budget,
            prefix_caching=prefix_caching,
            eos_token_ids=(0,),
            policy=policy,
            long_prefill_token_threshold=threshold,
            num_swap_blocks=num_swap_blocks,
            # with a second a token, some sequences are cheaper to swap and others to compute again
            costs=PreemptionCosts(swap_s_per_block, 1.0),
        )
        self.runner = FakeRunner(num_blocks, block_size, num_swap_blocks)
        self.budget = budget
        self.expected: dict[str, list[int]] = {}
        self.got: dict[str, list[int]] = {}
        self.ended: set[str] = set()
        self.count = 0
        self.now = 0.0

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=10),
        max_tokens=st.integers(1, 20),
        ignore_eos=st.booleans(),
        stop=st.sets(st.integers(0, VOCAB - 1), max_size=2),
        priority=st.integers(0, 2),
        salt=st.sampled_from([None, None, "tenant"]),
        num_siblings=st.sampled_from([0, 0, 1, 2, 7]),
        held=st.sampled_from([False, False, True]),
    )
    def add(
        self,
        prefix: list[int],
        tail: list[int],
        max_tokens: int,
        ignore_eos: bool,
        stop: set[int],
        priority: int,
        salt: str | None,
        num_siblings: int,
        held: bool,
    ) -> None:
        prompt, name = prefix + tail, f"r{self.count}"
        self.count += 1
        new = request(
            name,
            prompt,
            max_tokens,
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(stop),
            priority=priority,
            cache_salt=salt,
            arrival_s=self.now,
            siblings=siblings(name, num_siblings),
        )
        refusal = add(self.scheduler, new, held=held)
        kv = self.scheduler.kv
        impossible = (
            not prompt
            or len(prompt) + max_tokens > self.scheduler.max_model_len
            or kv.blocks_for(len(prompt) + max_tokens - 1) > kv.pool.num_blocks
        )
        assert (refusal is not None) == impossible
        if refusal is not None:
            assert refusal.finish_reason is FinishReason.ERROR
            assert refusal.error
            return
        stop_ids = frozenset(stop) | (frozenset() if ignore_eos else frozenset({0}))
        for one, seed in [(name, 0), *((sibling.request_id, sibling.seed or 0) for sibling in new.siblings)]:
            self.expected[one] = answer(prompt, max_tokens, stop_ids, seed=seed)
            self.got[one] = []

    @rule(data=st.data(), aborted_in_flight=st.integers(0, 2), stalls=st.sampled_from([False, False, True]))
    def step(self, data: st.DataObject, aborted_in_flight: int, stalls: bool) -> None:
        self._step(data, aborted_in_flight, stalls=stalls)

    @precondition(lambda self: self.scheduler.held)
    @rule(data=st.data(), fails=st.sampled_from([False, False, True]))
    def let_go(self, data: st.DataObject, fails: bool) -> None:
        sequence = self.scheduler.held[data.draw(st.sampled_from(sorted(self.scheduler.held)))]
        if not fails:
            self.scheduler.release(sequence)
            return
        family = [sequence.request_id, *(one.request_id for one in sequence.followers)]
        told = self.scheduler.fail(sequence, Fault("bad", "field"))
        assert [(delta.request_id, delta.error, delta.error_param) for delta in told] == [
            (name, "bad", "field") for name in family
        ]
        self.ended |= set(family)

    def _step(self, data: st.DataObject | None = None, aborted_in_flight: int = 0, *, stalls: bool = False) -> None:
        self.now += 1.0
        scheduler = self.scheduler
        before = sorted(
            one.request_id
            for one in live_sequences(scheduler)
            if one.request_id not in scheduler.held and (one.leader is None or one.leader.state is not State.HELD)
        )
        first = scheduler.running[0] if scheduler.running else None
        passed = first is not None and any(scheduler.waiting.outranks(other, first) for other in scheduler.waiting)
        computed = first.num_computed if first is not None else 0
        plan = scheduler.schedule(self.now)
        assert plan.num_tokens == sum(entry.num_tokens for entry in plan.scheduled) <= self.budget
        assert all(entry.num_tokens > 0 or entry.sequence.num_generated == 0 for entry in plan.scheduled)
        assert len({entry.sequence.request_id for entry in plan.scheduled}) == len(plan.scheduled)
        assert bool(plan.scheduled) == bool(before), "a step with work must compute something"
        tokens = self.runner.run(plan)
        if stalls and data is not None:
            tokens = [NOT_YET if data.draw(st.booleans()) else token for token in tokens]
        if data is not None:
            for _ in range(min(aborted_in_flight, len(before))):
                self._abort(data.draw(st.sampled_from(before)))
        for delta in scheduler.update(plan, tokens):
            assert delta.request_id not in self.ended, "a delta after the end"
            self.got[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.ended.add(delta.request_id)
                assert self.got[delta.request_id] == self.expected[delta.request_id]
        if first is not None and not passed and not stalls and first.request_id not in self.ended:
            assert first.num_computed > computed, "the first in rank did not advance"

    @precondition(lambda self: len(self.got) > len(self.ended))
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self._abort(data.draw(st.sampled_from(sorted(set(self.got) - self.ended))))

    @rule()
    def abort_unknown(self) -> None:
        assert not self.scheduler.abort("nobody")

    @rule()
    def forget_prefixes(self) -> None:
        self.scheduler.kv.pool.forget_all()

    def _abort(self, name: str) -> None:
        assert self.scheduler.abort(name) == (name not in self.ended)
        self.ended.add(name)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            assert faults(self.scheduler) == []
            assert {s.request_id for s in live_sequences(self.scheduler)} == set(self.got) - self.ended

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for sequence in list(self.scheduler.held.values()):
            self.scheduler.release(sequence)
        # the first in rank advances in every step, so this bound holds whatever is preempted
        pending = live_sequences(self.scheduler)
        bound = sum(len(s.tokens) + s.max_tokens for s in pending) + len(pending) + 1
        for _ in range(bound):
            if not self.scheduler.has_work:
                break
            self._step()
            assert faults(self.scheduler) == []
        assert not self.scheduler.has_work, "no progress"
        assert self.ended == set(self.got)
        assert self.scheduler.kv.pool.num_used == 0
        assert self.scheduler.swap is None or self.scheduler.swap.pool.num_used == 0
        assert faults(self.scheduler) == []


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
