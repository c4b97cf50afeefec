"""Decide what each step computes: one token budget, no phases, running sequences first, then waiting ones.

A sequence is scheduled for tokens it has and that are not computed yet: one in decoding, a chunk of what is left in a prompt.
Running sequences are served in the policy's rank. When blocks run out, the last of them gives all of its blocks back and is
swapped in or computed again later. The first is never taken from while it is not alone, and alone it fits (admission
checked), so it always ends: no livelock. As victims come last, whatever a step has planned already stays planned; and
nobody is preempted after the first was admitted, so no block is swapped in and out in one step.

Pure: no clock, no torch, no I/O. The caller runs the plan and reports the tokens with `update`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from quire.engine.admission import Limits
from quire.engine.costs import PreemptionCosts
from quire.engine.plan import Counters, Scheduled, StepPlan
from quire.engine.policy import POLICIES, Policy
from quire.engine.report import last_words, report
from quire.engine.results import NO_TOKEN, NOT_YET, Extras, Fault
from quire.engine.room import Room
from quire.engine.sequence import Sequence, State
from quire.engine.swapping import Swapper
from quire.kvcache.hashing import prefix_context
from quire.kvcache.manager import NO_HITS, Hits, KVCacheManager
from quire.kvcache.swap import SwapSpace
from quire.request import AddRequest, FinishReason, TokenDelta, params_of_siblings


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
        swap: SwapSpace | None = None,
        costs: PreemptionCosts | None = None,
    ) -> None:
        """long_prefill_token_threshold: tokens of prompts in a step at most while others decode; 0 is no limit. swap:
        where preempted sequences may keep what they have computed, if costs say so."""
        self.kv = kv
        self.max_num_seqs = min(max_num_seqs, max_num_batched_tokens)  # a token of the budget for each
        self.max_num_batched_tokens = max_num_batched_tokens
        self.max_model_len = max_model_len
        self.counters = Counters()
        self.running: list[Sequence] = []  # in the policy's rank
        self.waiting: Policy = POLICIES[policy]()
        self.held: dict[str, Sequence] = {}  # leaders that were added so, by id, until `release` or `fail`
        self.costs = costs or PreemptionCosts()
        self._room = Room(kv, self.max_num_seqs)
        self._swapper = Swapper(kv, swap, self.costs)
        self._limits = Limits(max_model_len, kv.pool.num_blocks, kv.block_size, vocab_size)
        self._threshold = long_prefill_token_threshold or max_num_batched_tokens
        self._live: dict[str, Sequence] = {}
        self._eos = frozenset(eos_token_ids)
        self._order = 0
        self._admitted = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    def sequences(self) -> Iterable[Sequence]:
        """All that have not ended."""
        return self._live.values()

    @property
    def num_swapped(self) -> int:
        """Sequences whose blocks are in the host pool."""
        return self._swapper.num_swapped

    @property
    def swap(self) -> SwapSpace | None:
        """The host pool, if there is one."""
        return self._swapper.space

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks yet, or none any more; those that wait for a leader included."""
        return len(self._live) - len(self.running) - self._swapper.num_swapped

    @property
    def utilization(self) -> float:
        """Computed tokens / slots of the blocks held, 0 to 1; 1 where none is held. A block of several holders counts once."""
        slots = self.kv.pool.num_used * self.kv.block_size
        size, empty = self.kv.block_size, 0.0
        for sequence in self.running:
            if blocks := sequence.table.blocks:
                empty += (len(blocks) * size - sequence.num_computed) / blocks[-1].references
        return 1.0 - empty / slots if slots else 1.0

    def add(
        self,
        request: AddRequest,
        *,
        seed: int,
        sibling_seeds: Iterable[int] = (),
        held: bool = False,
    ) -> TokenDelta | None:
        """Take a request and its siblings, a seed for each. A delta with an error comes back instead where it can never be
        served; it holds for the siblings too.

        held: they lack something yet; they join the queue with `release`.
        """
        fault = self.fault(request)
        if fault is not None:
            return TokenDelta(
                request_id=request.request_id, token_ids=[], finish_reason=FinishReason.ERROR, error=fault
            )
        own = [(request.request_id, seed)]
        own += [(sibling.request_id, other) for sibling, other in zip(request.siblings, sibling_seeds, strict=True)]
        leader: Sequence | None = None
        others = params_of_siblings(request)
        for index, (request_id, one) in enumerate(own):
            sequence = self._sequence(request, request_id, one)
            sequence.params = others if index else request.params
            self._live[request_id] = sequence
            if leader is None or index % self.max_num_seqs == 0:
                leader = sequence
                self._queue(sequence, held=held)
            else:
                sequence.leader = leader
                leader.followers.append(sequence)
        return None

    def release(self, sequence: Sequence) -> None:
        """Let a held sequence join the queue, and its followers with it."""
        del self.held[sequence.request_id]
        sequence.state = State.WAITING
        self._queue(sequence, held=False)

    def fail(self, sequence: Sequence, fault: Fault) -> list[TokenDelta]:
        """End a held sequence and its followers; what to tell them."""
        family = [sequence, *sequence.followers]
        for one in reversed(family):
            self._finish(one)
        return [last_words(one, fault) for one in family]

    def _queue(self, sequence: Sequence, *, held: bool) -> None:
        if held:
            sequence.state = State.HELD
            self.held[sequence.request_id] = sequence
        else:
            self.waiting.push(sequence)

    def _sequence(self, request: AddRequest, request_id: str, seed: int) -> Sequence:
        params = request.params
        self._order += 1
        return Sequence(
            request,
            request_id=request_id,
            table=self.kv.table(prefix_context(request.cache_salt)),
            stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos),
            seed=seed,
            max_tokens=self.max_model_len - len(request.prompt_token_ids)
            if params.max_tokens is None
            else params.max_tokens,
            order=self._order,
        )

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
        self._make_way(plan)
        plan.prefill_left = self._prefill_limit()
        if self._schedule_running(plan):
            self._schedule_waiting(plan, now)
        return plan

    def update(self, plan: StepPlan, tokens: list[int], extras: Extras | None = None) -> list[TokenDelta]:
        """Record a step's result: one token for each entry that samples, in order. What to tell the requests."""
        extras, finished = extras or Extras(), State.FINISHED
        logprobs, prompt_logprobs = extras.logprobs, extras.prompt_logprobs
        deltas: list[TokenDelta] = []
        position = 0
        for number, entry in enumerate(plan.scheduled):
            sequence = entry.sequence
            place = position
            position += entry.samples
            if number in prompt_logprobs:
                sequence.prompt_logprobs += prompt_logprobs[number]
            if sequence.state is finished:
                continue
            sequence.num_computed = entry.start + entry.num_tokens
            if entry.samples:
                token = tokens[place]
                if token == NOT_YET:
                    sequence.num_computed = len(sequence.tokens) - 1  # the newest is computed again, for its logits
                    continue
                reason = sequence.append(token) if token != NO_TOKEN else FinishReason.ERROR
                if reason is None and sequence.told and place not in logprobs:
                    deltas.append(TokenDelta(request_id=sequence.request_id, token_ids=[token]))
                else:
                    deltas.append(report(sequence, token, reason, extras, place))
                    if reason is not None:
                        self._finish(sequence)
        return deltas

    def _make_way(self, plan: StepPlan) -> None:
        """Preempt for the heads of the queue where they outrank running sequences and that gives them places and blocks."""
        head = self.waiting.head()
        if head is None or not self.running:
            return
        outranked = 0
        for other in reversed(self.running):
            if not self.waiting.outranks(head, other):
                break
            outranked += 1
        for _ in range(
            self._room.victims(head, self._find_prefix(head).full, self.running, outranked) if outranked else 0
        ):
            self._preempt(plan)

    def _schedule_running(self, plan: StepPlan) -> bool:
        """Serve running sequences in their rank; False where one had to be preempted, so that nobody else may enter."""
        running, budget, grow, copies = self.running, self.max_num_batched_tokens, self.kv.grow, plan.copies
        roomy, head = True, self.waiting.head()
        index = 0
        while index < len(running) and plan.num_tokens < budget:
            sequence = running[index]
            start = sequence.num_computed
            num_tokens = len(sequence.tokens) - start
            if num_tokens == 1 and start + 1 < sequence.table.own_until and start >= sequence.num_prompt:
                plan.scheduled.append(Scheduled(sequence, start, 1, True))  # most of decoding: a slot is there
                plan.num_tokens += 1
                index += 1
                continue
            if num_tokens > 1:
                if plan.prefill_left == 0:
                    index += 1
                    continue
                # A prompt leaves a token to each sequence behind it, so that decoding ones go on in every step, and to the
                # head of the queue where that outranks it: once inside, the head goes first.
                kept = head is not None and self.waiting.outranks(head, sequence)
                left = budget - plan.num_tokens - (len(running) - index - 1)
                num_tokens = min(num_tokens, max(min(plan.prefill_left, left) - kept, 1))
            while not grow(sequence.table, sequence.tokens, start, start + num_tokens, copies):
                roomy = False
                if self._preempt(plan) is sequence:
                    break
            else:
                index += 1 + self._plan(plan, sequence, num_tokens)
        return roomy

    def _schedule_waiting(self, plan: StepPlan, now: float) -> None:
        """Admit waiting sequences in the policy's order, while places, budget and blocks last."""
        while plan.num_tokens < self.max_num_batched_tokens and len(self.running) < self.max_num_seqs:
            sequence = self.waiting.head()
            if sequence is None or (plan.prefill_left == 0 and sequence.state is not State.SWAPPED):
                return
            hits = self._find_prefix(sequence)
            urgent = bool(self.running) and self.waiting.outranks(sequence, self.running[-1])
            if not self._room.fits(sequence, hits.full, self.running, urgent=urgent):
                return
            self._admit(plan, self.waiting.pop(), hits, now)
            start = sequence.num_computed
            missing = len(sequence.tokens) - start
            num_tokens = min(missing, max(plan.prefill_left, 1), self.max_num_batched_tokens - plan.num_tokens)
            grown = self.kv.grow(sequence.table, sequence.tokens, start, start + num_tokens, plan.copies)
            assert grown, "an admitted sequence fits the pool"
            self._plan(plan, sequence, num_tokens)

    def _find_prefix(self, sequence: Sequence) -> Hits:
        """What is computed already; of no use to a prompt whose hidden states are wanted."""
        return NO_HITS if sequence.needs_prompt else self.kv.find_prefix(sequence.table, sequence.tokens)

    def _admit(self, plan: StepPlan, sequence: Sequence, hits: Hits, now: float) -> None:
        num_found = self.kv.adopt(sequence.table, hits)
        if sequence.state is State.SWAPPED:
            self._swapper.bring_back(plan, sequence, num_found)
        else:
            sequence.num_computed = num_found
        sequence.state = State.RUNNING
        if sequence.admitted is None:
            sequence.admitted = self._admitted
            self._admitted += 1
            sequence.first_scheduled_s = now
            sequence.num_cached = num_found
            self.counters.prefix_queries += len(sequence.tokens) if self.kv.enable_prefix_caching else 0
            self.counters.prefix_hits += num_found
        insort(self.running, sequence, key=self.waiting.rank)

    def _prefill_limit(self) -> int:
        """Tokens of prompts in this step at most, all together: what runs as decoding waits for them."""
        decoding = any(len(other.tokens) - other.num_computed == 1 for other in self.running)
        return self.costs.tokens_of_a_step(self._threshold if decoding else self.max_num_batched_tokens)

    def _plan(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> int:
        """Enter a sequence into the plan; how many followers it drew in behind it."""
        start = sequence.num_computed
        end = start + num_tokens
        samples = sequence.draws and end == len(sequence.tokens)
        plan.scheduled.append(Scheduled(sequence, start, num_tokens, samples))
        plan.num_tokens += num_tokens
        if num_tokens > 1 or not samples:
            plan.prefill_left -= num_tokens
        if start < sequence.num_prompt:
            plan.num_prompt_tokens += min(end, sequence.num_prompt) - start
        return self._fork(plan, sequence) if samples and sequence.followers else 0

    def _fork(self, plan: StepPlan, leader: Sequence) -> int:
        """The leader's prompt is computed with this step: its followers share all of its blocks and draw from its logits, as many
        as there is room for; the first of the others leads them, and finds the prompt in the prefix cache."""
        count = self._room.forks(leader, self.running)
        followers, rest, leader.followers = leader.followers[:count], leader.followers[count:], []
        if rest:
            self._succeed(rest)
        end = len(leader.tokens)
        for follower in followers:
            self.kv.fork(leader.table, follower.table)
            follower.leader, follower.state, follower.num_computed = None, State.RUNNING, end
            follower.admitted, follower.num_cached = leader.admitted, leader.num_cached
            follower.first_scheduled_s = leader.first_scheduled_s
            insort(self.running, follower, key=self.waiting.rank)  # right behind: its order is the next one
            plan.scheduled.append(Scheduled(follower, end, 0, True))
        self.counters.forks += len(followers)
        return len(followers)

    def _preempt(self, plan: StepPlan) -> Sequence:
        """Take all blocks from the running sequence that is last in rank; which one that was."""
        victim = self.running.pop()
        if self._swapper.put_out(plan, victim):
            victim.state = State.SWAPPED
            self.counters.preemptions_swap += 1
        else:
            victim.state = State.WAITING
            victim.num_computed = 0
            self.counters.preemptions_recompute += 1
        self.kv.release(victim.table)
        self.waiting.push(victim)
        return victim

    def _finish(self, sequence: Sequence) -> None:
        was, sequence.state = sequence.state, State.FINISHED
        if sequence.leader is not None:
            sequence.leader.followers.remove(sequence)
        elif was is State.HELD:
            del self.held[sequence.request_id]
        elif was is State.RUNNING:
            self.running.remove(sequence)
        else:
            self.waiting.discard(sequence)
        if was is State.SWAPPED:
            self._swapper.drop(sequence)
        self.kv.publish_tail(sequence.table, sequence.tokens, sequence.num_computed)
        self.kv.release(sequence.table)
        del self._live[sequence.request_id]
        if sequence.followers:
            self._succeed(sequence.followers, held=was is State.HELD)

    def _succeed(self, followers: list[Sequence], *, held: bool = False) -> None:
        """Their leader ended before its prompt was computed, or there is no room beside it: the first of them leads."""
        heir, *rest = followers
        heir.leader, heir.followers = None, rest
        for follower in rest:
            follower.leader = heir
        self._queue(heir, held=held)

    def fault(self, request: AddRequest) -> str | None:
        """Why a request can never be served, with the numbers; None where it can."""
        ids = [request.request_id, *(sibling.request_id for sibling in request.siblings)]
        for request_id in ids:
            if request_id in self._live or ids.count(request_id) > 1:
                return f"request id {request_id!r} is already in use"
        return self._limits.fault(request)
