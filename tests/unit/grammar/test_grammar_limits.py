"""What a grammar may cost comes from flags, and what it cost is told in figures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quire.config import EngineConfig
from quire.engine.core import EngineCore
from quire.engine.grammar.limits import limits_of, needed_memory, nursery_memory, total_memory
from quire.errors import ConfigError, ModelError
from quire.metrics import EngineMetrics
from quire.request import EngineReady, FinishReason, GrammarStats
from quire_testing.cores import make_core
from quire_testing.structured import AMBIGUOUS, Answer, add, finish, grammars_of, params, run, step

PROMPT = list(range(5, 35))
MIB = 1 << 20


VOCAB_SIZE = 49_152


def limits(left_mib: int = 8192, **fields: Any) -> Any:
    """left_mib: of what the plan leaves, beside the nursery."""
    config = EngineConfig(**fields)
    left = left_mib * MIB + nursery_memory(VOCAB_SIZE)
    return limits_of(config, total_memory(config, left, VOCAB_SIZE))


@pytest.mark.parametrize(
    ("left_mib", "total_mib", "one_mib"),
    [
        (-50, 0, 0),
        (47, 0, 0),
        (48, 48, 16),
        (99, 99, 33),
        (300, 192, 64),
        (600, 300, 100),
        (3000, 1500, 500),
        (8192, 4096, 1024),
        (1 << 20, 4096, 1024),
    ],
)
def test_the_default_memory_follows_what_the_plan_leaves(left_mib: int, total_mib: int, one_mib: int) -> None:
    found = limits(left_mib)
    assert (found.total_bytes, found.memory_bytes) == (total_mib * MIB, one_mib * MIB)


@pytest.mark.parametrize("compiling", [1, 12, 64])
def test_one_grammar_has_enough_to_start_however_many_may_compile(compiling: int) -> None:
    parts = compiling + 1
    found = limits(64 * parts, max_compiling_grammars=compiling)
    assert (found.memory_bytes, found.total_bytes) == (64 * MIB, 64 * MIB * parts)
    found = limits(16 * parts, max_compiling_grammars=compiling)
    assert (found.memory_bytes, found.total_bytes) == (16 * MIB, 16 * MIB * parts)


def test_where_the_memory_of_one_is_given_there_is_room_for_those_that_compile_and_one_more() -> None:
    found = limits(4096, grammar_memory="1Gi", max_compiling_grammars=3)
    assert (found.memory_bytes, found.total_bytes) == (1024 * MIB, 4096 * MIB)
    found = limits(900, grammar_memory="16Mi")
    assert (found.memory_bytes, found.total_bytes) == (16 * MIB, 450 * MIB)


def test_memory_of_one_that_does_not_fit_is_refused_with_the_sum_and_what_fits() -> None:
    with pytest.raises(ModelError) as caught:
        limits(4095, grammar_memory="1Gi", max_compiling_grammars=3)
    assert str(caught.value) == (
        "--grammar-memory 1Gi does not fit: it is taken 4 times (--max-compiling-grammars + 1), with 84 MiB for the process that "
        "they share 4,180 MiB, but the memory plan leaves 4,179 MiB; --grammar-memory 1023Mi fits"
    )
    assert limits(4095, grammar_memory="1023Mi", max_compiling_grammars=3).memory_bytes == 1023 * MIB
    for left_mib in (-500, 40):
        with pytest.raises(ModelError, match=r"leaves \d+ MiB; leave it out, or take a smaller KV pool$"):
            limits(left_mib, grammar_memory="64Mi")


def test_the_nursery_is_counted_by_its_vocabulary() -> None:
    assert needed_memory(EngineConfig(), 300) == nursery_memory(300) + 48 * MIB
    assert needed_memory(EngineConfig(grammar_memory="1Gi"), 300) == nursery_memory(300) + 3072 * MIB
    assert 23 * MIB < nursery_memory(300) < 30 * MIB
    assert 205 * MIB < nursery_memory(151_936) < 220 * MIB


def test_where_there_is_too_little_memory_requests_hear_it(folder: Path) -> None:
    core = make_core(folder)
    bound(core, 0)
    bound_to, free = params(0, 5, regex="a"), params(0, 5)
    answers = run(core, {"bound": (PROMPT, bound_to), "free": (PROMPT, free)})
    said = "structured_outputs: structured outputs are not available: the memory plan leaves too little for them"
    assert (answers["bound"].error, answers["bound"].error_param) == (said, "structured_outputs")
    assert answers["free"].error is None
    assert grammars_of(core)._nursery is None


def test_flags_become_limits() -> None:
    found = limits(
        max_grammars=3,
        max_compiling_grammars=4,
        max_grammar_size="5Ki",
        grammar_memory="64Mi",
        grammar_compile_timeout=7.0,
        grammar_token_timeout=0.25,
        grammar_mean_token_time=0.125,
    )
    assert (found.num_grammars, found.num_compiling, found.spec_bytes, found.memory_bytes) == (3, 4, 5120, 64 * MIB)
    assert (found.compile_cpu_s, found.mask_cpu_s, found.mean_cpu_s) == (7.0, 0.25, 0.125)
    assert (found.compile_wall_s, found.mask_wall_s) == (420.0, 15.0)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("max_grammar_size", "2Mi", "--max-grammar-size must be between 1 and 1Mi, got 2Mi"),
        ("max_grammar_size", "0", "--max-grammar-size must be between 1 and 1Mi, got 0"),
        ("grammar_memory", "1Mi", "--grammar-memory must be at least 16Mi, got 1Mi"),
    ],
)
def test_a_size_out_of_bounds_is_refused_with_the_flag(field: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        limits(**{field: value})


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder, max_grammar_size="100", grammar_memory="64Mi", max_compiling_grammars=1)
    yield core
    grammars_of(core).close()


def test_a_grammar_beyond_the_size_is_refused_with_the_flag(core: EngineCore) -> None:
    fits, large = params(0, 3, regex="[ab]" * 25), params(0, 3, regex="ä" * 51)
    answers = run(core, {"fits": (PROMPT, fits), "large": (PROMPT, large)})
    assert answers["fits"].error is None
    assert answers["large"].error == "structured_outputs: it must be at most 100 bytes (--max-grammar-size)"
    assert (answers["large"].error_param, answers["large"].reason) == ("structured_outputs", FinishReason.ERROR)


def test_a_grammar_beyond_the_memory_is_refused_with_the_number(core: EngineCore) -> None:
    [answer] = run(core, {"a": (PROMPT, params(regex="a{1000000}"))}).values()
    assert "takes more than 64 MiB of memory" in (answer.error or "")


def bound(core: EngineCore, num_bytes: int) -> None:
    """No more than that for all grammars together."""
    grammars = grammars_of(core)
    grammars.limits = msgspec.structs.replace(grammars.limits, total_bytes=num_bytes)


def large(name: str) -> dict[str, Any]:
    """A grammar of some MiB."""
    return {"choice": [f"{name} {i}" for i in range(3000)]}


def test_workers_that_nobody_uses_end_before_all_of_them_hold_too_much(folder: Path) -> None:
    core = make_core(folder, grammar_memory="64Mi")
    grammars = grammars_of(core)
    run(core, {"first": (PROMPT, params(0, 60, **large("first")))})
    one = grammars.taken_bytes
    assert MIB < one < 64 * MIB
    bound(core, int(1.5 * one) + 64 * MIB)
    alive = []
    for name in ("second", "third", "fourth", "fifth"):
        [answer] = run(core, {name: (PROMPT, params(0, 60, **large(name)))}).values()
        assert answer.error is None
        assert grammars.taken_bytes <= 2.5 * one
        alive.append(grammars.num_alive)
    assert alive == [2, 2, 2, 2], "the last ones are kept"
    grammars.close()


def test_a_grammar_that_fails_in_mid_answer_for_want_of_room_asks_to_be_sent_again(folder: Path) -> None:
    core = make_core(folder, grammar_memory="64Mi")
    grammars = grammars_of(core)
    answers: dict[str, Answer] = {}
    add(core, "large", PROMPT, params(0, 60, **large("of many answers this is number")))
    add(core, "small", PROMPT, params(0, 30, regex="[ab]{40}"))
    while len(answers) < 2:
        step(core, answers)
    sizes = sorted(grammar.taken_bytes for grammar in grammars._kept.values())
    assert sizes[0] < sizes[1]
    bound(core, sizes[1] - 1)
    finish(core, answers)
    assert answers["large"].token_ids, "in the middle"
    assert (answers["large"].error_param, answers["large"].reason) == (None, FinishReason.ERROR)
    assert (answers["large"].error or "").startswith("all grammars together may hold ")
    assert (answers["large"].error or "").endswith("; send the request again")
    assert (answers["small"].error, len(answers["small"].token_ids)) == (None, 30)
    bound(core, sizes[1] * 4 + 64 * MIB)
    again = run(core, {"again": (PROMPT, params(0, 60, **large("of many answers this is number")))})["again"]
    assert again.error is None, "it is not remembered"
    grammars.close()


def test_what_is_slow_on_average_is_refused_with_both_numbers(folder: Path) -> None:
    core = make_core(folder, grammar_token_timeout=0.5, grammar_mean_token_time=0.0005, max_model_len=512)
    given = params(1, 400, grammar=AMBIGUOUS)
    given.min_tokens = 400
    [answer] = run(core, {"a": (PROMPT, given)}).values()
    assert re.search(r"too complex: it needs [\d.]+ ms of CPU a token, 0.5 are allowed", answer.error or "")
    assert answer.error_param == "structured_outputs"
    assert answer.token_ids
    grammars_of(core).close()


def test_no_more_are_compiled_at_once_than_allowed(core: EngineCore) -> None:
    for index in range(3):
        add(core, str(index), PROMPT, params(0, 3, regex=f"[ab]{{{index + 10}}}"))
    answers: dict[str, Answer] = {}
    at_once = set()
    while core.has_work:
        for delta in core.step().deltas:
            answers[delta.request_id] = Answer(error=delta.error)
        at_once.add(len(grammars_of(core)._compiling))
    assert max(at_once) == 1
    assert {answer.error for answer in answers.values()} == {None}


def test_what_it_cost_is_reported_once(folder: Path) -> None:
    core = make_core(folder)
    assert core.stats().grammars == GrammarStats(num_live=0, num_compilations=0, failures={})
    for name, fields in {"good": {"regex": "[ab]{5}"}, "bad": {"regex": "(["}}.items():
        add(core, name, PROMPT, params(0, 9, **fields))
    compile_s: list[float] = []
    mask_s: list[float] = []
    steps = 0
    while core.has_work:
        found = core.step().stats.grammars
        assert found is not None
        compile_s += found.compile_s
        mask_s += found.mask_s
        steps += bool(found.mask_s)
    last = core.stats().grammars
    assert last == GrammarStats(num_live=1, num_compilations=2, failures={"invalid": 1})
    assert len(compile_s) == 2
    assert all(0 < seconds < 60 for seconds in compile_s)
    assert len(mask_s) == steps == 6
    grammars_of(core).close()


def page(metrics: EngineMetrics) -> str:
    return metrics.exposition("")[0].decode()


def test_the_metrics_of_grammars_begin_at_zero_and_follow() -> None:
    metrics = EngineMetrics("m")
    metrics.ready(EngineReady(max_model_len=8, num_blocks=2, block_size=16, vocab_size=9, info={}, startup_s={}), {})
    for line in (
        'quire_num_grammars{model_name="m"} 0.0',
        'quire_grammar_compilations_total{model_name="m"} 0.0',
        'quire_grammar_failures_total{model_name="m",reason="too_complex"} 0.0',
        'quire_grammar_failures_total{model_name="m",reason="lost"} 0.0',
        'quire_grammar_compile_seconds_count{model_name="m"} 0.0',
        'quire_grammar_mask_seconds_count{model_name="m"} 0.0',
    ):
        assert line in page(metrics)
    stats = GrammarStats(num_live=3, num_compilations=5, failures={"invalid": 2}, compile_s=[0.5, 1.5], mask_s=[0.25])
    for _ in range(2):  # totals do not count twice, times do
        metrics._step_grammars(stats)
    for line in (
        'quire_num_grammars{model_name="m"} 3.0',
        'quire_grammar_compilations_total{model_name="m"} 5.0',
        'quire_grammar_failures_total{model_name="m",reason="invalid"} 2.0',
        'quire_grammar_compile_seconds_count{model_name="m"} 4.0',
        'quire_grammar_compile_seconds_sum{model_name="m"} 4.0',
        'quire_grammar_mask_seconds_sum{model_name="m"} 0.5',
    ):
        assert line in page(metrics)
