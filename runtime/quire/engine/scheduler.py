"""Decide what each step computes: one token budget, no phases, running sequences first, then waiting ones.

A sequence is scheduled for tokens it has and that are not computed yet: one in decoding, a chunk of what is left in a prompt.
When blocks run out, the newest sequence gives all of its blocks back and is computed again later. The oldest running
sequence is never taken from while it is not alone, and alone it fits (admission checked), so it always ends: no livelock.

Pure: no clock, no torch, no I/O. The caller runs the plan and reports the tokens with `update`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.engine.policy import POLICIES, Policy
from quire.engine.results import NO_TOKEN, NOT_FINITE, Extras
from quire.engine.sequence import Sequence, State
from quire.kvcache.manager import KVCacheManager
from quire.request import AddRequest, FinishReason, TokenDelta


@dataclass(slots=True)
class Scheduled:
    """tokens[start : start + num_tokens] of a sequence are computed in this step. `samples`: a token is drawn after."""

    sequence: Sequence
    start: int
    num_tokens: int
    samples: bool


@dataclass(slots=True)
class StepPlan:
    """What one step computes. `deltas` are about requests that ended without a step."""

    scheduled: list[Scheduled] = field(default_factory=list)
    num_tokens: int = 0
    num_prompt_tokens: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class Scheduler:
    """Owns all live sequences and the KV cache's bookkeeping."""

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        vocab_size: int,
        eos_token_ids: Iterable[int] = (),
        policy: str = "fcfs",
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.counters = Counters()
        self.running: list[Sequence] = []
        self.waiting: Policy = POLICIES[policy]()
        self._live: dict[str, Sequence] = {}
        self._eos = frozenset(eos_token_ids)
        self._order = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def add(self, request: AddRequest, *, seed: int) -> TokenDelta | None:
        """Take a request. A delta with an error comes back instead where it can never be served."""
        fault = self.fault(request)
        if fault is not None:
            return TokenDelta(
                request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=fault
            )
        params = request.params
        room = self.max_model_len - len(request.prompt_token_ids)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        sequence = Sequence(
            request,
            table=self.kv.table(),
            stop_ids=stop_ids,
            seed=seed,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            order=self._order,
        )
        self._order += 1
        self._live[sequence.request_id] = sequence
        self.waiting.push(sequence)
        return None

    def abort(self, request_id: str) -> bool:
        """End a request in whatever state it is and free its blocks now; False where it is not known."""
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        self._finish(sequence)
        return True

    def forget(self) -> None:
        """Empty the prefix cache and start the counters anew (after a warm-up)."""
        self.kv.pool.forget_all()
        self.counters = Counters()

    def schedule(self, now: float) -> StepPlan:
        """Choose what the next step computes and give it blocks."""
        plan = StepPlan()
        preempted = self._schedule_running(plan)
        if not preempted:
            self._schedule_waiting(plan, now)
        return plan

    def update(self, plan: StepPlan, tokens: list[int], extras: Extras | None = None) -> list[TokenDelta]:
        """Record a step's result: one token for each entry that samples, in order. What to tell the requests."""
        extras = extras or Extras()
        deltas: list[TokenDelta] = []
        position = 0
        for entry in plan.scheduled:
            sequence = entry.sequence
            place = position
            position += entry.samples
            if sequence.state is State.FINISHED:
                continue
            sequence.num_computed = entry.start + entry.num_tokens
            if entry.samples:
                deltas.append(self._append(sequence, tokens[place], extras, place))
        return deltas

    def _append(self, sequence: Sequence, token: int, extras: Extras, place: int) -> TokenDelta:
        first = sequence.num_generated == 0
        if token == NO_TOKEN:
            self._finish(sequence)
            return TokenDelta(
                request_id=sequence.request_id,
                token_ids=[],
                finish_reason=FinishReason.ERROR,
                error=extras.errors.get(place, NOT_FINITE),
            )
        reason = sequence.append(token)
        if reason is not None:
            self._finish(sequence)
        queued = sequence.first_scheduled_s
        return TokenDelta(
            request_id=sequence.request_id,
            token_ids=[token],
            finish_reason=reason,
            stop_token_id=token if reason is FinishReason.STOP else None,
            num_cached_tokens=sequence.num_cached if first else 0,
            queue_s=max(queued - sequence.arrival_s, 0.0) if first and queued is not None else None,
        )

    def _schedule_running(self, plan: StepPlan) -> bool:
        """Serve running sequences, oldest first; True where one had to be preempted."""
        preempted = False
        index = 0
        while index < len(self.running) and plan.num_tokens < self.max_num_batched_tokens:
            sequence = self.running[index]
            missing = len(sequence.tokens) - sequence.num_computed
            num_tokens = min(missing, self.max_num_batched_tokens - plan.num_tokens)
            while not self.kv.grow(sequence.table, sequence.tokens, sequence.num_computed + num_tokens):
                victim = self.waiting.victim(self.running)
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
            else:
                self._plan(plan, sequence, num_tokens)
                index += 1
        return preempted

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        """Admit waiting sequences in the policy's order, while sequences, budget and blocks last."""
        while len(self.running) < self.max_num_seqs and plan.num_tokens < self.max_num_batched_tokens:
            sequence = self.waiting.head(now)
            if sequence is None:
                return
            hits = self.kv.find_prefix(sequence.table, sequence.tokens)
            # The whole of it must fit, and leave each running sequence room to grow, or it would be preempted at once.
            needed = self.kv.missing_blocks(hits, len(sequence.tokens) + 1) + len(self.running)
            if self.running and needed > self.kv.pool.num_free:
                return
            self.waiting.pop()
            sequence.num_computed = self.kv.adopt(sequence.table, hits)
            num_tokens = min(
                len(sequence.tokens) - sequence.num_computed, self.max_num_batched_tokens - plan.num_tokens
            )
            grown = self.kv.grow(sequence.table, sequence.tokens, sequence.num_computed + num_tokens)
            assert grown, "an admitted sequence fits the pool"
            sequence.state = State.RUNNING
            self.running.append(sequence)
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = now
                sequence.num_cached = sequence.num_computed
                self.counters.prefix_queries += len(sequence.tokens) if self.kv.enable_prefix_caching else 0
                self.counters.prefix_hits += sequence.num_computed
            self._plan(plan, sequence, num_tokens)

    @staticmethod
    def _plan(plan: StepPlan, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        plan.scheduled.append(Scheduled(sequence, start, num_tokens, start + num_tokens == len(sequence.tokens)))
        plan.num_tokens += num_tokens
        plan.num_prompt_tokens += max(min(start + num_tokens, sequence.num_prompt) - start, 0)

    def _preempt(self, victim: Sequence) -> None:
        self.running.remove(victim)
        self.kv.release(victim.table)
        victim.num_computed = 0
        victim.num_preemptions += 1
        victim.state = State.WAITING
        self.counters.preemptions += 1
        self.waiting.push(victim)

    def _finish(self, sequence: Sequence) -> None:
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        else:
            self.waiting.discard(sequence)
        sequence.state = State.FINISHED
        self.kv.release(sequence.table)
        del self._live[sequence.request_id]

    def fault(self, request: AddRequest) -> str | None:
        """Why a request can never be served, with the numbers; None where it can."""
        tokens, limit = request.prompt_token_ids, request.params.max_tokens
        if request.request_id in self._live:
            return f"request id {request.request_id!r} is already in use"
        if not tokens:
            return "the prompt is empty; it must have at least one token"
        if len(tokens) >= self.max_model_len:
            return f"the prompt has {len(tokens)} tokens, the model's length is {self.max_model_len}, one must be left"
        total = self.max_model_len if limit is None else len(tokens) + limit
        if total > self.max_model_len:
            return (
                f"the prompt has {len(tokens)} tokens and max_tokens is {limit}, together {total}, "
                f"but the model's length is {self.max_model_len}"
            )
        # the last token generated is never computed, so it needs no slot
        blocks = self.kv.blocks_for(total - 1)
        if blocks > self.kv.pool.num_blocks:
            return (
                f"the request needs {blocks} KV blocks for {total} tokens, but the pool has {self.kv.pool.num_blocks}; "
                "lower max_tokens, or raise --kv-cache-memory or --num-blocks"
            )
        lowest, highest = min(tokens), max(tokens)
        if lowest < 0 or highest >= self.vocab_size:
            bad = lowest if lowest < 0 else highest
            return f"prompt token id {bad} is outside the model's vocabulary of {self.vocab_size}"
        return None
