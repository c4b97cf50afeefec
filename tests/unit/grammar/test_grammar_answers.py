"""Structured outputs through the engine's core: answers are what was asked for, whatever happens to the request."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.engine.core import EngineCore
from quire.request import FinishReason
from quire.text import Tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import assert_valid, grammars_of, params, run, text_of

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
UNICODE = ["日本語", "Größe", 'say "hi"', "back\\slash", "line\nbreak", "tab\there", "🦊🎉", "<|im_end|>", "a\u0301"]
PROMPT = list(range(5, 35))


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder)
    yield core
    grammars_of(core).close()


def test_sampled_answers_satisfy_the_schema_and_neighbours_are_not_touched(
    core: EngineCore, tokenizer: Tokenizer
) -> None:
    free = {f"free {seed}": (PROMPT, params(seed, 30)) for seed in range(3)}
    bound = {f"bound {seed}": (PROMPT, params(seed, json=PERSON)) for seed in range(6)}
    alone = run(core, dict(free))
    together = run(core, bound | free)
    assert {name: together[name] for name in free} == alone
    values = [assert_valid(text_of(together[name], tokenizer), PERSON) for name in bound]
    assert len({json.dumps(value) for value in values}) > 1, "different seeds, different answers"


@pytest.mark.parametrize("chosen", UNICODE)
def test_an_enum_value_comes_out_as_it_is(core: EngineCore, tokenizer: Tokenizer, chosen: str) -> None:
    """B041. Characters are escaped where JSON wants it and nowhere else."""
    schema = {
        "type": "object",
        "properties": {chosen: {"enum": [chosen]}},
        "required": [chosen],
        "additionalProperties": False,
    }
    [answer] = run(core, {"a": (PROMPT, params(temperature=0.0, json=schema))}).values()
    text = text_of(answer, tokenizer)
    assert json.loads(text) == {chosen: chosen}
    short = re.sub(r"\\u00([01][0-9A-Fa-f])", lambda code: json.dumps(chr(int(code[1], 16)))[1:-1], text)
    assert re.sub(r"\s", "", short) == re.sub(r"\s", "", json.dumps({chosen: chosen}, ensure_ascii=False))


def test_each_of_several_unicode_values_can_be_chosen(core: EngineCore, tokenizer: Tokenizer) -> None:
    requests = {str(seed): (PROMPT, params(seed, json={"enum": UNICODE})) for seed in range(40)}
    values = [json.loads(text_of(answer, tokenizer)) for answer in run(core, requests).values()]
    assert set(values) <= set(UNICODE)
    assert len(set(values)) >= 5


@pytest.mark.parametrize("pattern", [r"[0-9]{4}-(0[1-9]|1[0-2])", r"(?:ab|c){2,3}", "[äöü]+🦊", "héllo"])
def test_the_whole_answer_matches_the_expression(core: EngineCore, tokenizer: Tokenizer, pattern: str) -> None:
    requests = {str(seed): (PROMPT, params(seed, 400, regex=pattern)) for seed in range(4)}
    for answer in run(core, requests).values():
        if answer.reason is FinishReason.LENGTH:  # a random model may go on with + for ever
            continue
        assert re.fullmatch(pattern, text_of(answer, tokenizer))


def test_the_answer_is_one_of_the_choices(core: EngineCore, tokenizer: Tokenizer) -> None:
    choices = ["yes", "yes, indeed", "no", 'a "quoted"\n\\ one', "né", "[a-z]+"]
    requests = {str(seed): (PROMPT, params(seed, choice=choices)) for seed in range(30)}
    texts = [text_of(answer, tokenizer) for answer in run(core, requests).values()]
    assert set(texts) <= set(choices)
    assert len(set(texts)) >= 3


def test_many_choices(core: EngineCore, tokenizer: Tokenizer) -> None:
    choices = [f"option {i}" for i in range(5000)]
    [answer] = run(core, {"a": (PROMPT, params(choice=choices))}).values()
    assert text_of(answer, tokenizer) in choices


def test_a_grammar_in_lark(core: EngineCore, tokenizer: Tokenizer) -> None:
    grammar = 'start: NUM ("+" NUM){2}\nNUM: /[1-9][0-9]?/'
    requests = {str(seed): (PROMPT, params(seed, grammar=grammar)) for seed in range(5)}
    for answer in run(core, requests).values():
        assert re.fullmatch(r"[1-9][0-9]?(\+[1-9][0-9]?){2}", text_of(answer, tokenizer))


def test_a_recursive_schema(core: EngineCore, tokenizer: Tokenizer) -> None:
    schema: dict[str, Any] = {
        "$defs": {
            "t": {"type": "object", "properties": {"n": {"enum": [1]}, "c": {"$ref": "#/$defs/t"}}, "required": ["n"]}
        },
        "$ref": "#/$defs/t",
    }
    schema["$defs"]["t"]["additionalProperties"] = False
    requests = {str(seed): (PROMPT, params(seed, 200, json=schema)) for seed in range(4)}
    for answer in run(core, requests).values():
        if answer.reason is FinishReason.STOP:
            assert_valid(text_of(answer, tokenizer), schema)


def test_the_same_tokens_alone_in_a_batch_after_preemption_and_on_a_prefix_hit(
    core: EngineCore, folder: Path, tokenizer: Tokenizer
) -> None:
    requests = {
        **{f"seeded {seed}": (PROMPT, params(seed, json=PERSON)) for seed in range(5)},
        "greedy": (PROMPT, params(temperature=0.0, max_tokens=40, json_object=True)),
    }
    alone = {name: run(core, {name: request})[name] for name, request in requests.items()}
    assert run(core, requests) == alone
    tight = make_core(folder, num_blocks=12, max_model_len=160)
    assert run(tight, requests) == alone
    assert tight.scheduler.counters.preemptions > 0
    assert core.scheduler.counters.prefix_hits > 0


def test_a_grammar_is_compiled_once_and_kept_within_bounds(folder: Path, tokenizer: Tokenizer) -> None:
    core = make_core(folder)
    run(core, {str(seed): (PROMPT, params(seed, regex="a{3}")) for seed in range(3)})
    grammars = grammars_of(core)
    [first] = grammars._kept.values()
    assert first._num_sessions == 3
    key, link = first.output.key, weakref.ref(first._worker.link)  # type: ignore[union-attr]
    del first
    run(core, {str(i): (PROMPT, params(choice=[str(i)])) for i in range(grammars.limits.num_grammars + 3)})
    assert len(grammars._kept) == grammars.limits.num_grammars
    assert key not in grammars._kept
    assert link() is None, "its worker ends with the last holder"
    grammars.close()


def test_a_worker_forgets_what_has_ended(core: EngineCore) -> None:
    run(core, {str(seed): (PROMPT, params(seed, regex="b{3}")) for seed in range(4)})
    grammar = grammars_of(core).get(params(regex="b{3}").structured_outputs)  # type: ignore[arg-type]
    assert sorted(grammar.ended) == [1, 2, 3, 4]
    run(core, {"next": (PROMPT, params(0, regex="b{3}"))})
    assert grammar.ended == [5], "the others were told"


_VALUES = st.sampled_from(
    [
        {"type": "string", "maxLength": 4},
        {"type": "string", "pattern": "^[ab]{1,3}$"},
        {"type": "integer", "minimum": -5, "maximum": 70},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["ü", 7, None, 'q"\\']},
        {"const": {"k": [1, "ß"]}},
        {"anyOf": [{"type": "boolean"}, {"enum": ["é", "x"]}]},
    ]
)


def _nested(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(["a", "ключ", "b c", 'd"'])
    objects = st.dictionaries(names, inner, min_size=1, max_size=3).map(
        lambda properties: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:2],
            "additionalProperties": False,
        }
    )
    arrays = inner.map(lambda items: {"type": "array", "items": items, "maxItems": 2})
    return objects | arrays


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(
    schema=_nested(_VALUES | _nested(_VALUES)), seed=st.integers(0, 2**32), temperature=st.sampled_from([0.0, 0.7, 2.0])
)
def test_documents_of_random_schemas_are_valid(
    core: EngineCore, tokenizer: Tokenizer, schema: dict[str, Any], seed: int, temperature: float
) -> None:
    [answer] = run(core, {"a": (PROMPT, params(seed, 450, temperature=temperature, json=schema))}).values()
    if answer.reason is FinishReason.LENGTH:  # a random model may indent every line by 32 spaces
        return
    assert_valid(text_of(answer, tokenizer), schema)
