"""Logits processors against slow references that are written straight from the definitions, one row at a time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.engine.results import LATER, NO_TOKEN, NOT_YET, Fault
from quire.engine.sampling import Sampler
from quire.engine.sampling.penalties import Seen
from quire.engine.sampling.pipeline import nothing_allowed
from quire.engine.sampling.processors import default_processors
from quire.engine.sequence import Sequence
from quire.request import SamplingParams
from quire_testing.rows import make_row

VOCAB = 24
GREEDY = SamplingParams(temperature=0.0)
IDS = st.integers(0, VOCAB - 1)


def processed(logits: torch.Tensor, rows: list[Sequence]) -> torch.Tensor:
    """Logits after all processors."""
    out = logits.clone().float()
    for processor in default_processors():
        where = [i for i, row in enumerate(rows) if processor.wants(row.params)]
        if where:
            assert processor.apply(out, where, [rows[i] for i in where]) == {}
    return out


def expected(logits: list[float], params: SamplingParams, prompt: list[int], answer: list[int], stops: set[int]) -> Any:
    """One row, one token at a time, in plain Python."""
    out = list(logits)
    for token in range(len(out)):
        allowed = params.allowed_token_ids is None or token in params.allowed_token_ids
        for word in params.bad_words_token_ids:
            *beginning, last = word
            if token == last and answer[len(answer) - len(beginning) :] == beginning and len(answer) >= len(beginning):
                allowed = False
        if token in stops and len(answer) < params.min_tokens:
            allowed = False
        if not allowed:
            out[token] = -math.inf
            continue
        out[token] += (params.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in answer:
            penalty = params.repetition_penalty
            out[token] = out[token] / penalty if out[token] > 0 else out[token] * penalty
        out[token] -= params.frequency_penalty * answer.count(token)
        out[token] -= params.presence_penalty * (token in answer)
    return out


PARAMS = st.builds(
    lambda **fields: SamplingParams(temperature=0.0, max_tokens=100, **fields),
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, -1.5, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.25, 2.0]),
    logit_bias=st.none() | st.dictionaries(IDS, st.sampled_from([-100.0, -1.0, 3.0]), max_size=4),
    allowed_token_ids=st.none() | st.lists(IDS, min_size=1, max_size=20),
    bad_words_token_ids=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=4).map(tuple),
    min_tokens=st.integers(0, 6),
)
HISTORY = st.tuples(st.lists(IDS, min_size=1, max_size=8), st.lists(st.integers(0, 3) | IDS, max_size=8))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(PARAMS, HISTORY, st.sets(IDS, max_size=3)), min_size=1, max_size=5), st.integers(0, 99))
def test_a_batch_equals_the_definition_row_by_row(batch: list[Any], seed: int) -> None:
    logits = torch.randn(len(batch), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    rows = [
        make_row(params, prompt=prompt, generated=answer, stop_ids=stops) for params, (prompt, answer), stops in batch
    ]
    out = processed(logits, rows)
    for i, (params, (prompt, answer), stops) in enumerate(batch):
        want = torch.tensor(expected(logits[i].tolist(), params, prompt, answer, stops))
        torch.testing.assert_close(out[i], want, rtol=1e-5, atol=1e-5)
    result = Sampler(default_processors())(logits, rows)
    for i, token in enumerate(result.tokens):
        if out[i].max() == -math.inf:
            assert (token, result.extras.errors[i]) == (NO_TOKEN, nothing_allowed(rows[i].params))
        else:
            assert (token, i in result.extras.errors) == (int(out[i].argmax()), False)


@given(st.lists(IDS, min_size=1, max_size=5), st.lists(IDS, max_size=30), st.lists(st.integers(1, 4), max_size=10))
def test_penalty_counts_follow_the_tokens_however_they_come(
    prompt: list[int], answer: list[int], cuts: list[int]
) -> None:
    seen, at = Seen(with_prompt=True), 0
    for size in [*cuts, len(answer)]:
        at = min(at + size, len(answer))
        seen.follow(prompt + answer[:at], len(prompt))
    counted = dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True))
    assert counted == {token: answer.count(token) for token in {*prompt, *answer}}
    seen.follow(prompt, len(prompt))  # shorter than before: counted anew
    assert dict(zip(seen.ids.tolist(), seen.counts.tolist(), strict=True)) == dict.fromkeys(prompt, 0.0)


def test_penalty_memory_follows_the_distinct_tokens() -> None:
    seen = Seen(with_prompt=True)
    seen.follow(list(range(1000)) * 3, 500)
    assert len(seen.ids) == 1000
    assert seen.counts[:500].tolist() == [2.0] * 500
    assert seen.counts[500:].tolist() == [3.0] * 500


def test_rows_without_wishes_are_left_alone() -> None:
    logits = torch.randn(3, VOCAB)
    rows = [
        make_row(GREEDY),
        make_row(SamplingParams(temperature=0.0, allowed_token_ids=[7])),
        make_row(SamplingParams(seed=1), seed=1),
    ]
    before = logits.clone()
    tokens = Sampler(default_processors())(logits, rows).tokens
    assert torch.equal(logits, before), "the step's logits are also what log probabilities are made of"
    assert tokens == [int(before[0].argmax()), 7, Sampler()(before[2:], rows[2:]).tokens[0]]
    assert [row.processors for row in rows] == [(), (0,), ()]


def test_a_drawn_row_is_restricted_by_processors() -> None:
    params = SamplingParams(temperature=5.0, allowed_token_ids=[3, 4, 5], bad_words_token_ids=((4,),))
    rows = [make_row(params, seed=1, position=i) for i in range(300)]
    assert set(Sampler(default_processors())(torch.randn(1, VOCAB).expand(300, -1), rows).tokens) == {3, 5}


def test_a_seed_gives_the_same_token_with_processors_in_any_batch() -> None:
    logits = torch.randn(4, VOCAB)
    params = SamplingParams(temperature=1.5, presence_penalty=1.0, min_tokens=3, max_tokens=9, top_p=0.9)

    def row() -> Sequence:
        return make_row(params, seed=9, generated=[1, 2], stop_ids=[3])

    alone = Sampler(default_processors())(logits[2:3], [row()]).tokens
    others = [make_row(SamplingParams(seed=3), seed=3), make_row(GREEDY), row(), make_row(params, seed=4)]
    assert Sampler(default_processors())(logits, others).tokens[2:3] == alone


def test_nothing_allowed_fails_only_its_row() -> None:
    params = SamplingParams(allowed_token_ids=[2], min_tokens=4)
    rows = [make_row(GREEDY), make_row(params, stop_ids=[2]), make_row(SamplingParams(seed=1), seed=1)]
    result = Sampler(default_processors())(torch.randn(3, VOCAB), rows)
    assert result.tokens[1] == NO_TOKEN
    said = "no token is allowed: allowed_token_ids and min_tokens exclude all of them"
    assert result.extras.errors == {1: Fault(said, "min_tokens")}
    assert all(0 <= result.tokens[i] < VOCAB for i in (0, 2))


def test_logits_that_are_not_finite_are_no_fault_of_the_processors() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 5] = math.nan
    row = make_row(SamplingParams(temperature=0.0, logit_bias={1: 2.0}))
    result = Sampler(default_processors())(logits, [row, row])
    assert (result.tokens, result.extras.errors) == ([NO_TOKEN, 1], {})


class Breaks:
    """A processor that fails for one of its rows."""

    def wants(self, params: SamplingParams) -> bool:
        return params.temperature > 0

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def apply(self, logits: torch.Tensor, where: list[int], rows: list[Any]) -> dict[int, Fault]:
        return {i: self.fault for i, row in enumerate(rows) if row.seed == 2}


def test_a_fault_of_one_row_is_reported_for_that_row() -> None:
    rows = [make_row(GREEDY), *(make_row(SamplingParams(), seed=seed) for seed in (1, 2, 3))]
    fault = Fault("broke", "field")
    result = Sampler([Breaks(fault)])(torch.randn(4, VOCAB), rows)
    assert (result.tokens[2], result.extras.errors) == (NO_TOKEN, {2: fault})
    assert NO_TOKEN not in (result.tokens[0], result.tokens[1], result.tokens[3])


def test_a_row_that_a_processor_is_not_done_with_draws_nothing_yet() -> None:
    rows = [make_row(SamplingParams(logprobs=1), seed=seed) for seed in (1, 2, 3)]
    logits = torch.randn(3, VOCAB)
    result = Sampler([Breaks(LATER)])(logits, rows)
    assert (result.tokens[1], result.extras.errors) == (NOT_YET, {})
    assert sorted(result.extras.logprobs) == [0, 2]
    rest = Sampler()(logits, [make_row(row.params, seed=row.seed) for row in rows]).tokens
    assert [result.tokens[0], result.tokens[2]] == [rest[0], rest[2]]


def test_that_nothing_is_allowed_outweighs_not_yet() -> None:
    params = SamplingParams(allowed_token_ids=[2], min_tokens=4)
    result = Sampler([*default_processors(), Breaks(LATER)])(
        torch.randn(1, VOCAB), [make_row(params, seed=2, stop_ids=[2])]
    )
    assert (result.tokens, result.extras.errors) == ([NO_TOKEN], {0: nothing_allowed(params)})


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"min_p": 0.5}, {0, 3}),
        ({"min_p": 0.15}, {0, 1, 3}),
        ({"min_p": 1.0}, {3}),
        ({"min_p": 0.5, "temperature": 3.0}, {0, 1, 3}),
        ({"typical_p": 0.1}, {0}),
        ({"typical_p": 0.3}, {0}),
        ({"typical_p": 0.4}, {0, 3}),
        ({"typical_p": 0.85}, {0, 1, 3}),
        ({"typical_p": 0.999}, {0, 1, 2, 3, 4}),
        ({"typical_p": 0.1, "top_p": 0.1}, {0}),
        ({"min_p": 0.15, "top_k": 2}, {0, 3}),
    ],
)
def test_min_p_and_typical_p_restrict(fields: dict[str, Any], allowed: set[int]) -> None:
    probabilities = torch.tensor([0.31, 0.09, 0.05, 0.52, 0.03])
    logits = probabilities.log().expand(4000, -1)
    rows = [make_row(SamplingParams(**fields), seed=1, position=i) for i in range(4000)]
    assert set(Sampler()(logits, rows).tokens) == allowed
