"""Structured outputs that explode, crash or are aborted: they fail alone, and others never notice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.engine.core import EngineCore
from quire.errors import RequestError
from quire.request import FinishReason, SamplingParams
from quire.structured import structured_output
from quire.text import Tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import (
    AMBIGUOUS,
    EXPLOSIVE,
    Answer,
    add,
    finish,
    grammars_of,
    params,
    run,
    step,
    text_of,
)

PROMPT = list(range(5, 35))
CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(15_000)) + '\nr15000: "a"'
"""Overflows the library's stack: the process that compiles it dies of SIGSEGV."""


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(
        folder, max_model_len=512, grammar_compile_timeout=0.4, grammar_token_timeout=0.2, grammar_memory="256Mi"
    )
    yield core
    grammars_of(core).close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"json": EXPLOSIVE}, "too complex: compiling it takes more than"),
        ({"grammar": CHAIN}, "too complex: it is nested too deeply"),
        ({"regex": "a{1000000}"}, "too complex"),
    ],
    ids=["endless", "crash", "huge"],
)
def test_what_cannot_be_compiled_fails_alone_while_others_go_on(
    core: EngineCore, fields: dict[str, Any], said: str
) -> None:
    answers: dict[str, Answer] = {}
    add(core, "bad", PROMPT, params(**fields))
    add(core, "late", PROMPT, params(0, 4, regex="[ab]{8}"))
    others = 0
    while "bad" not in answers:
        if not (core.scheduler.running or len(core.scheduler.waiting)):
            add(core, f"other {others}", PROMPT, params(others, 20))
            others += 1
        assert core.stats().num_waiting >= 1
        step(core, answers)
    bad = answers["bad"]
    assert (bad.token_ids, bad.reason, bad.error_param) == ([], FinishReason.ERROR, "structured_outputs")
    assert bad.error is not None
    assert said in bad.error
    finish(core, answers)
    assert answers["late"].reason is FinishReason.LENGTH
    for index in range(others):
        assert (answers[f"other {index}"].error, len(answers[f"other {index}"].token_ids) > 0) == (None, True)
    assert sum(len(answers[f"other {index}"].token_ids) for index in range(others)) >= 1
    add(core, "again", PROMPT, params(**fields))
    step(core, answers)
    assert answers["again"].error == bad.error, "it is remembered, not tried again"


def test_what_gets_slower_with_each_token_fails_alone_and_names_the_field(core: EngineCore) -> None:
    slow = {f"slow {seed}": (PROMPT, params(seed, 400, grammar=AMBIGUOUS)) for seed in range(6)}
    others = {"other": (PROMPT, params(0, 30, regex="[ab]{60}")), "free": (PROMPT, params(0, 30))}
    answers = run(core, slow | others)
    failed = [answers[name] for name in slow if answers[name].error is not None]
    assert failed, "the random model ended every text before it grew"
    for answer in failed:
        assert (answer.error or "").startswith("structured_outputs: the grammar is too complex")
        assert (answer.error_param, answer.reason) == ("structured_outputs", FinishReason.ERROR)
        assert answer.token_ids, "in the middle of the answer"
    assert answers["other"].error is answers["free"].error is None
    assert len(answers["other"].token_ids) > 0
    short = run(core, {"short": (PROMPT, params(0, 3, grammar=AMBIGUOUS))})["short"]
    assert short.error is None, "one answer's trouble is not the next one's"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"regex": "(["}, "unclosed character class"),
        ({"regex": r"(a)\1"}, "backreferences are not supported"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "start: ((("}, "line 1, column"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"json": {"type": "strin"}}, "Invalid type: strin"),
        ({"json": {"type": "array", "uniqueItems": True}}, 'Unimplemented keys: ["uniqueItems"]'),
        ({"json": {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}}, "uniqueItems"),
        ({"json": {"$ref": "http://example.com/s.json"}}, "http://example.com/s.json"),
        ({"json": {"type": "string", "minLength": 5, "maxLength": 2}}, "Unsatisfiable schema"),
        ({"json": {"$ref": "#"}}, ""),
        ({"json": False}, "schema is false"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_said_in_one_line(core: EngineCore, fields: dict[str, Any], said: str) -> None:
    """B040: never answered without the constraint."""
    [answer] = run(core, {"a": (PROMPT, params(**fields))}).values()
    assert (answer.token_ids, answer.reason, answer.error_param) == ([], FinishReason.ERROR, "structured_outputs")
    assert answer.error is not None
    assert answer.error.startswith("structured_outputs: ")
    assert said in answer.error
    assert "\n" not in answer.error


def test_abort_while_compiling(core: EngineCore) -> None:
    for name in ("first", "second", "third"):
        add(core, name, PROMPT, params(json={**EXPLOSIVE, "title": name}))
    add(core, "first", PROMPT, params(0, 3))
    answers: dict[str, Answer] = {}
    assert core.stats().num_waiting == 3
    step(core, answers)
    error = answers.pop("first").error
    assert error == "request id 'first' is already in use"
    core.abort(["first", "third", "unknown"])
    assert core.stats().num_waiting == 1
    core.abort(["second"])
    assert not core.has_work
    run(core, {"next": (PROMPT, params(0, 60, regex="[ab]{2}"))})
    kept = [grammar.output.spec for grammar in grammars_of(core)._kept.values()]
    assert not any('"third"' in spec for spec in kept), "what nobody waits for any more is not begun"


def test_abort_while_answering_frees_everything(core: EngineCore) -> None:
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(0, 60, regex="[ab]{50}"))
    while len(answers.get("a", Answer()).token_ids) < 3:
        step(core, answers)
    core.abort(["a"])
    assert not core.has_work
    assert core.scheduler.kv.pool.num_used == 0


def test_a_step_that_fails_leaves_no_masks_for_the_next(core: EngineCore, tokenizer: Tokenizer) -> None:
    answers: dict[str, Answer] = {}
    executor = core.runner.executor

    class Broken:
        device = executor.device

        def forward(self, *_: object) -> None:
            raise RuntimeError("device lost")

    add(core, "a", PROMPT, params(0, 60, choice=["one answer"]))
    while not answers.get("a", Answer()).token_ids:
        step(core, answers)
    core.runner.executor = Broken()  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="device lost"):
        core.step()
    core.runner.executor = executor
    core.abort(["a"])
    core.reset_prefix_cache()
    [answer] = run(core, {"b": (PROMPT, params(0, 60, choice=["one answer"]))}).values()
    assert text_of(answer, tokenizer) == "one answer"


def test_a_refused_request_that_is_aborted_says_nothing_any_more(core: EngineCore) -> None:
    add(core, "a", [], params(regex="a"))
    assert core.has_work
    core.abort(["a"])
    assert not core.has_work
    assert core.step().deltas == []


def test_what_excludes_every_token_is_named(core: EngineCore) -> None:
    given = params(0, 5, regex="[0-9]{3}")
    given.allowed_token_ids = (5,)
    [answer] = run(core, {"a": (PROMPT, given)}).values()
    assert answer.error == "no token is allowed: allowed_token_ids and structured_outputs exclude all of them"
    assert answer.error_param == "structured_outputs"


def test_end_tokens_that_the_grammar_allows_end_the_answer_whatever_the_model_says(
    core: EngineCore, tokenizer: Tokenizer
) -> None:
    ends, core.scheduler._eos = core.scheduler._eos, frozenset()
    try:
        [answer] = run(core, {"a": (PROMPT, params(0, 30, choice=["hello"]))}).values()
    finally:
        core.scheduler._eos = ends
    assert text_of(answer, tokenizer) == "hello"


def test_ignore_eos_and_a_structured_output_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="ignore_eos must be false together with structured_outputs") as caught:
        SamplingParams(ignore_eos=True, structured_outputs=structured_output(regex="a"))
    assert caught.value.param == "ignore_eos"


def test_a_worker_loads_neither_torch_nor_transformers() -> None:
    code = "import sys, quire.engine.grammar.worker, quire.engine.grammar.library, quire.models.source; sys.exit([m for m in ('torch', 'transformers', 'zmq') if m in sys.modules] or 0)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_an_engine_without_structured_outputs_starts_no_process(folder: Path) -> None:
    core = make_core(folder)
    run(core, {"a": (PROMPT, params(0, 5))})
    assert grammars_of(core)._nursery is None
