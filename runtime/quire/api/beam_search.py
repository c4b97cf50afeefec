"""Beam search on an engine: every beam's next step is a request of one token, which finds the beam's past in the prefix cache.

So beams of a prompt, and prompts, are scheduled like anything else, and share blocks. A step computes one token a beam; of beams that
fill the same block in one step, all but one compute that block again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from quire.api.beam import BeamSearch, BeamSearchOutput, BeamSearchParams
from quire.api.interrupts import held_interrupts
from quire.api.llm_engine import LLMEngine
from quire.api.requests import Encoded
from quire.errors import RequestError
from quire.outputs import RequestOutput
from quire.request import RequestOutputKind, SamplingParams
from quire.sampling_params import MAX_LOGPROBS

_log = logging.getLogger(__name__)


class _Group:
    """One prompt: its search, and what has come back of the current step."""

    def __init__(self, index: int, search: BeamSearch) -> None:
        self.index = index
        self.search = search
        self.likeliest: list[Mapping[int, Any] | None] = []

    def begin_step(self) -> list[Encoded]:
        self.likeliest = [None] * len(self.search.beams)
        return [Encoded(None, beam.tokens) for beam in self.search.beams]


def run(
    engine: LLMEngine,
    prompts: Sequence[Encoded],
    params: BeamSearchParams,
    ids: Iterator[int],
    advance: Callable[[], None],
    *,
    concurrency: int,
) -> list[BeamSearchOutput]:
    """Search for every prompt, `concurrency` of them at a time. ids: for requests. Raises RequestError."""
    if not engine.config.enable_prefix_caching:
        _log.warning("beam search without enable_prefix_caching computes every beam anew at every step")
    end_ids = engine.tokenizer.eos_ids
    searches = [
        BeamSearch(
            prompt.token_ids,
            params,
            end_ids,
            max_tokens=min(params.max_tokens, engine.ready.max_model_len - len(prompt.token_ids)),
        )
        for prompt in prompts
    ]
    width = min(searches[0].num_candidates, engine.ready.vocab_size) if searches else 1
    if width > MAX_LOGPROBS:
        raise RequestError(
            f"beam_width {params.beam_width} needs the {width} likeliest tokens of a step with the {len(end_ids)} end tokens of "
            f"this model, and there are at most {MAX_LOGPROBS}; lower it",
            param="beam_width",
        )
    step = SamplingParams(temperature=0.0, max_tokens=1, logprobs=width, ignore_eos=True, detokenize=False)
    waiting = deque(_Group(index, search) for index, search in enumerate(searches))
    live: dict[str, tuple[_Group, int]] = {}

    def submit(group: _Group) -> None:
        for place, beam in enumerate(group.begin_step()):
            request_id = f"beam-{next(ids)}"
            engine.add_encoded(request_id, beam, step, kind=RequestOutputKind.FINAL_ONLY)
            live[request_id] = (group, place)

    num_groups = 0
    with held_interrupts() as check_interrupt:
        try:
            while waiting or live:
                while waiting and num_groups < concurrency:
                    submit(waiting.popleft())
                    num_groups += 1
                for output in engine.step():
                    if output.request_id not in live:
                        continue
                    group, place = live.pop(output.request_id)
                    group.likeliest[place] = _candidates(output)
                    if all(entries is not None for entries in group.likeliest):
                        group.search.advance([entries for entries in group.likeliest if entries is not None])
                        if group.search.done:
                            num_groups -= 1
                            advance()
                        else:
                            submit(group)
                check_interrupt()
        finally:
            engine.abort_request(list(live))
    return [_finished(engine, search, params) for search in searches]


def _candidates(output: RequestOutput) -> Mapping[int, Any]:
    [answer] = output.outputs
    if answer.error is not None or not answer.logprobs:
        raise RequestError(f"beam search could not go on: {answer.error or 'a step came without log probabilities'}")
    entries: Mapping[int, Any] = answer.logprobs[0]
    return entries


def _finished(engine: LLMEngine, search: BeamSearch, params: BeamSearchParams) -> BeamSearchOutput:
    beams = search.best()
    for beam in beams:
        beam.text = engine.tokenizer.decode(beam.tokens, skip_special_tokens=not params.include_stop_str_in_output)
    return BeamSearchOutput(beams)
