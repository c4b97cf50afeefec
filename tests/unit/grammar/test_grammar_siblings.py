"""Siblings with a structured output fork as all siblings do: one prompt, one grammar, and a state of their own from the first token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.engine.core import EngineCore
from quire.request import FinishReason
from quire.text import Tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import Answer, add, assert_valid, finish, grammars_of, params, run, step, text_of

PROMPT = list(range(5, 45))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SEEDS = [3, 5, 7]


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder, max_num_seqs=8, max_num_batched_tokens=16)
    yield core
    grammars_of(core).close()


@pytest.fixture(scope="module")
def alone(core: EngineCore) -> dict[str, Answer]:
    """What each of a family answers as a request of its own."""
    names = ["a", *(f"a.{i}" for i in range(1, len(SEEDS) + 1))]
    return {
        name: run(core, {name: (PROMPT, params(seed, json=SCHEMA))})[name]
        for name, seed in zip(names, [1, *SEEDS], strict=True)
    }


def test_the_prompt_is_computed_once_and_each_answer_is_that_of_a_request_of_its_own(
    core: EngineCore, tokenizer: Tokenizer, alone: dict[str, Answer]
) -> None:
    core.reset_prefix_cache()
    hits, forks = core.scheduler.counters.prefix_hits, core.scheduler.counters.forks
    answers: dict[str, Answer] = {}
    computed: list[int] = []
    add(core, "a", PROMPT, params(1, json=SCHEMA), SEEDS)
    assert core.stats().num_waiting == 4
    while core.has_work:
        report = core.step()
        computed.append(report.stats.num_prompt_tokens)
        if sum(computed) == len(PROMPT) and computed[-1]:
            blocks = core.scheduler.kv.blocks_for(len(PROMPT))
            assert report.stats.num_blocks_used == blocks, "four sequences hold the same blocks"
        for delta in report.deltas:
            answer = answers.setdefault(delta.request_id, Answer())
            answer.token_ids += delta.token_ids
            answer.reason, answer.stop_token_id = delta.finish_reason, delta.stop_token_id
    assert sum(computed) == len(PROMPT)
    assert core.scheduler.counters.forks == forks + 3
    assert core.scheduler.counters.prefix_hits == hits
    assert answers == alone
    values = [assert_valid(text_of(answer, tokenizer), SCHEMA) for answer in answers.values()]
    assert len({json.dumps(value) for value in values}) > 1
    assert len(grammars_of(core)._kept) == 1


def test_a_family_larger_than_the_batch_comes_in_turns(folder: Path, alone: dict[str, Answer]) -> None:
    core = make_core(folder, max_num_seqs=2)
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, json=SCHEMA), SEEDS)
    finish(core, answers)
    assert answers == alone
    assert core.scheduler.counters.forks >= 1
    assert core.scheduler.counters.prefix_hits > 0, "those that found no place beside their leader"
    grammars_of(core).close()


@pytest.mark.parametrize("victim", ["a", "a.1", "a.3"])
@pytest.mark.parametrize("when", ["held", "prefilling", "forked", "decoding"])
def test_abort_of_any_of_them_leaves_the_others(
    core: EngineCore, alone: dict[str, Answer], victim: str, when: str
) -> None:
    core.reset_prefix_cache()
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, json=SCHEMA), SEEDS)
    if when != "held":
        tokens = {"prefilling": 0, "forked": 1, "decoding": 3}[when]
        while not core.scheduler.running or len(answers.get("a", Answer()).token_ids) < tokens:
            step(core, answers)
    core.abort([victim])
    core.abort([victim])
    finish(core, answers)
    assert answers.pop(victim, Answer()).reason is None
    assert answers == {name: answer for name, answer in alone.items() if name != victim}
    assert core.scheduler.kv.pool.num_used == 0


def test_all_of_them_hear_why_their_grammar_cannot_be_built(core: EngineCore) -> None:
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, regex="(["), SEEDS)
    add(core, "b", PROMPT, params(1, 3))
    finish(core, answers)
    assert len(answers) == 5
    refused = [answer for name, answer in answers.items() if name != "b"]
    assert {answer.error_param for answer in refused} == {"structured_outputs"}
    assert all(answer.reason is FinishReason.ERROR and not answer.token_ids for answer in refused)
    assert answers["b"].error is None


def test_end_tokens_that_the_grammar_allows_end_every_one_of_them(core: EngineCore, tokenizer: Tokenizer) -> None:
    ends, core.scheduler._eos = core.scheduler._eos, frozenset()
    answers: dict[str, Answer] = {}
    try:
        add(core, "a", PROMPT, params(0, 30, choice=["hello"]), SEEDS)
        finish(core, answers)
    finally:
        core.scheduler._eos = ends
    assert [text_of(answer, tokenizer) for answer in answers.values()] == ["hello"] * 4


def test_an_id_of_a_sibling_that_is_held_is_in_use(core: EngineCore) -> None:
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, 4, json=SCHEMA), SEEDS)
    for given in (params(0, 3), params(0, 3, regex="x")):
        add(core, "a.2", PROMPT, given)
        for delta in core.step().deltas:
            assert (delta.request_id, delta.error) == ("a.2", "request id 'a.2' is already in use")
            break
        else:
            raise AssertionError("nothing was said")
    finish(core, answers)
    assert {answer.error for answer in answers.values()} == {None}
    assert len(answers) == 4
