"""Scheduler and pool under random requests, steps and aborts: nothing leaks, nothing starves, every answer is right."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quire.request import FinishReason
from quire_testing.fake_runner import VOCAB, FakeRunner, answer
from quire_testing.scheduling import faults, live_sequences, make_scheduler, request

PREFIXES = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 11, 12, 13, 14], [], [21] * 12]


class Serving(RuleBasedStateMachine):
    """Random life of an engine."""

    @initialize(
        num_blocks=st.integers(4, 24),
        block_size=st.sampled_from([1, 2, 4]),
        max_num_seqs=st.integers(1, 6),
        budget=st.integers(1, 24),
        prefix_caching=st.booleans(),
    )
    def start(self, num_blocks: int, block_size: int, max_num_seqs: int, budget: int, prefix_caching: bool) -> None:
        self.scheduler = make_scheduler(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            budget=budget,
            prefix_caching=prefix_caching,
            eos_token_ids=(0,),
        )
        self.runner = FakeRunner(num_blocks, block_size)
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
    )
    def add(self, prefix: list[int], tail: list[int], max_tokens: int, ignore_eos: bool, stop: set[int]) -> None:
        prompt, name = prefix + tail, f"r{self.count}"
        self.count += 1
        new = request(name, prompt, max_tokens, ignore_eos=ignore_eos, stop_token_ids=tuple(stop))
        refusal = self.scheduler.add(new, seed=0)
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
        else:
            stop_ids = frozenset(stop) | (frozenset() if ignore_eos else frozenset({0}))
            self.expected[name] = answer(prompt, max_tokens, stop_ids)
            self.got[name] = []

    @rule(data=st.data(), aborted_in_flight=st.integers(0, 2))
    def step(self, data: st.DataObject, aborted_in_flight: int) -> None:
        self.now += 1.0
        before = {s.request_id: (s.num_computed, len(s.tokens)) for s in live_sequences(self.scheduler)}
        plan = self.scheduler.schedule(self.now)
        assert plan.num_tokens == sum(entry.num_tokens for entry in plan.scheduled) <= self.budget
        assert all(entry.num_tokens > 0 for entry in plan.scheduled)
        assert len({entry.sequence.request_id for entry in plan.scheduled}) == len(plan.scheduled)
        assert bool(plan.scheduled) == bool(before), "a step with work must compute something"
        tokens = self.runner.run(plan)
        for _ in range(min(aborted_in_flight, len(before))):
            self._abort(data.draw(st.sampled_from(sorted(before))))
        for delta in self.scheduler.update(plan, tokens):
            assert delta.request_id not in self.ended, "a delta after the end"
            self.got[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.ended.add(delta.request_id)
                assert self.got[delta.request_id] == self.expected[delta.request_id]

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
        # the oldest running sequence advances in every step, so this bound holds whatever is preempted
        pending = live_sequences(self.scheduler)
        bound = sum(len(s.tokens) + s.max_tokens for s in pending) + len(pending) + 1
        steps = 0
        while self.scheduler.has_work:
            plan = self.scheduler.schedule(self.now)
            for delta in self.scheduler.update(plan, self.runner.run(plan)):
                self.got[delta.request_id] += delta.token_ids
                if delta.finish_reason is not None:
                    assert delta.request_id not in self.ended
                    self.ended.add(delta.request_id)
                    assert self.got[delta.request_id] == self.expected[delta.request_id]
            assert faults(self.scheduler) == []
            steps += 1
            assert steps <= bound, "no progress"
        assert self.ended == set(self.got)
        assert self.scheduler.kv.pool.num_used == 0
        assert faults(self.scheduler) == []


TestServing = Serving.TestCase
TestServing.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
