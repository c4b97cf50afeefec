"""Decide what each step computes: one token budget, no phases, running sequences first, then waiting ones.

A sequence is scheduled for tokens it has and that are not computed yet: one in decoding, a chunk of what is left in a prompt.
Running sequences are served in the policy's rank. When blocks run out, the last of them gives all of its blocks back and is
computed again later. The first is never taken from while it is not alone, and alone it fits (admission checked), so it
always ends: no livelock. As victims come last, whatever a step has planned already stays planned.

Pure: no clock, no torch, no I/O. The caller runs the plan and reports the tokens with `update`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from quire.engine.admission import Limits
from quire.engine.policy import POLICIES, Policy
from quire.engine.results import NO_TOKEN, NOT_FINITE, Extras
from quire.engine.sequence import Sequence, State
from quire.kvcache.hashing import prefix_context
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.pool import Block
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
        long_prefill_token_threshold: int = 0,
    ) -> None:
        """long_prefill_token_threshold: tokens of one prompt in a step at most while others decode; 0 is no limit."""
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.counters = Counters()
        self.running: list[Sequence] = []  # in the policy's rank
        self.waiting: Policy = POLICIES[policy]()
        self._limits = Limits(max_model_len, kv.pool.num_blocks, kv.block_size, vocab_size)
        self._chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._live: dict[str, Sequence] = {}
        self._eos = frozenset(eos_token_ids)
        self._order = 0
        self._admitted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def add(self, request: AddRequest, *, seed: int, scratch: dict[str, Any] | None = None) -> TokenDelta | None:
        """Take a request. A delta with an error comes back instead where it can never be served.

        scratch: what stages of the sampler know of it already.
        """
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
            table=self.kv.table(prefix_context(request.cache_salt)),
            stop_ids=stop_ids,
            seed=seed,
            max_tokens=room if params.max_tokens is None else params.max_tokens,
            order=self._order,
        )
        sequence.scratch.update(scratch or {})
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
        self._make_way(now)
        if self._schedule_running(plan):
            self._schedule_waiting(plan, now)
        return plan

    def update(self, plan: StepPlan, tokens: list[int], extras: Extras | None = None) -> list[TokenDelta]:
        """Record a step's result: one token for each entry that samples, in order. What to tell the requests."""
        extras = extras or Extras()
        deltas: list[TokenDelta] = []
        position = 0
        for number, entry in enumerate(plan.scheduled):
            sequence = entry.sequence
            place = position
            position += entry.samples
            if sequence.state is State.FINISHED:
                continue
            sequence.num_computed = entry.start + entry.num_tokens
            sequence.prompt_logprobs += extras.prompt_logprobs.get(number, ())
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
        logprobs = extras.logprobs.get(place)
        return TokenDelta(
            request_id=sequence.request_id,
            token_ids=[token],
            finish_reason=reason,
            stop_token_id=token if reason is FinishReason.STOP else None,
            num_cached_tokens=sequence.num_cached if first else 0,
            queue_s=max(queued - sequence.arrival_s, 0.0) if first and queued is not None else None,
            logprobs=None if logprobs is None else [logprobs],
            prompt_logprobs=sequence.prompt_logprobs if first and sequence.params.prompt_logprobs is not None else None,
        )

    def _make_way(self, now: float) -> None:
        """Admit waiting sequences that outrank running ones, preempting these where a place or blocks are missing."""
        head = self.waiting.head()
        while head is not None and self.running and self.waiting.outranks(head, self.running[-1]):
            hits = self._find_prefix(head)
            if self._fits(head, hits):
                self._admit(self.waiting.pop(), now, hits)
                head = self.waiting.head()
            else:
                self._preempt(self.running[-1])

    def _schedule_running(self, plan: StepPlan) -> bool:
        """Serve running sequences in their rank; False where one had to be preempted, so that nobody else may enter."""
        running, budget = self.running, self.max_num_batched_tokens
        roomy = True
        index = 0
        while index < len(running) and plan.num_tokens < budget:
            sequence = running[index]
            num_tokens = len(sequence.tokens) - sequence.num_computed
            if num_tokens > 1:
                # A prompt leaves a token to each sequence behind it: decoding ones go on in every step.
                left = budget - plan.num_tokens - (len(running) - index - 1)
                num_tokens = min(num_tokens, self._chunk_limit(), max(left, 1))
            while not self.kv.grow(sequence.table, sequence.tokens, sequence.num_computed + num_tokens):
                roomy = False
                victim = running[-1]
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                self._plan(plan, sequence, num_tokens)
                index += 1
        return roomy

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        """Admit waiting sequences in the policy's order, while sequences, budget and blocks last."""
        while plan.num_tokens < self.max_num_batched_tokens:
            sequence = self.waiting.head()
            if sequence is None or len(self.running) >= self.max_num_seqs:
                return
            hits = self._find_prefix(sequence)
            if not self._fits(sequence, hits):
                return
            self._admit(self.waiting.pop(), now, hits)
            missing = len(sequence.tokens) - sequence.num_computed
            num_tokens = min(missing, self._chunk_limit(), self.max_num_batched_tokens - plan.num_tokens)
            grown = self.kv.grow(sequence.table, sequence.tokens, sequence.num_computed + num_tokens)
            assert grown, "an admitted sequence fits the pool"
            self._plan(plan, sequence, num_tokens)

    def _find_prefix(self, sequence: Sequence) -> list[Block]:
        """Blocks that are computed already; of no use to a prompt whose log probabilities are wanted."""
        return [] if sequence.missing_prompt_logprobs else self.kv.find_prefix(sequence.table, sequence.tokens)

    def _fits(self, sequence: Sequence, hits: list[Block]) -> bool:
        """Whether a waiting sequence may run: the whole of it fits, and each running one can grow, else it would be
        preempted at once. Alone, any sequence may."""
        if not self.running:
            return True
        needed = self.kv.missing_blocks(hits, len(sequence.tokens) + 1) + len(self.running)
        return len(self.running) < self.max_num_seqs and needed <= self.kv.pool.num_free

    def _admit(self, sequence: Sequence, now: float, hits: list[Block]) -> None:
        sequence.num_computed = num_found = self.kv.adopt(sequence.table, hits)
        sequence.state = State.RUNNING
        if sequence.admitted is None:
            sequence.admitted = self._admitted
            self._admitted += 1
            sequence.first_scheduled_s = now
            sequence.num_cached = num_found
            self.counters.prefix_queries += len(sequence.tokens) if self.kv.enable_prefix_caching else 0
            self.counters.prefix_hits += num_found
        insort(self.running, sequence, key=self.waiting.rank)

    def _chunk_limit(self) -> int:
        """Tokens of one prompt in a step at most."""
        if self._chunk < self.max_num_batched_tokens and any(
            len(other.tokens) - other.num_computed == 1 for other in self.running
        ):
            return self._chunk
        return self.max_num_batched_tokens

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
        if request.request_id in self._live:
            return f"request id {request.request_id!r} is already in use"
        return self._limits.fault(request)
