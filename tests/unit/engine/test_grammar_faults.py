"""Structured outputs that explode, crash or are aborted: they fail alone, and others never notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire.engine.core import EngineCore
from quire.engine.grammar.client import NOT_READY, NURSERY_ENDED, SESSION
from quire.engine.grammar.processor import GrammarProcessor
from quire.engine.grammar.protocol import Tokens
from quire.errors import RequestError
from quire.request import FinishReason, SamplingParams
from quire.structured import structured_output
from quire.text import Tokenizer, load_tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import (
    EXPLOSIVE,
    Answer,
    add,
    grammars_of,
    params,
    run,
    set_limits,
    step,
    text_of,
    write_model,
)

PROMPT = list(range(5, 35))
CHAIN = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(15_000)) + '\nr15000: "a"'
"""Overflows the library's stack: the process that compiles it dies of SIGSEGV."""
AMBIGUOUS = "start: e\ne: e e | e e e | /[ -~]/"
"""Compiles at once; then each token takes longer than the one before it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder, max_model_len=512)
    set_limits(core, compile_cpu_s=0.4, mask_cpu_s=0.2, memory_bytes=256 << 20)
    yield core
    grammars_of(core).close()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"json": EXPLOSIVE}, "too complex: compiling it takes more than 0.4 s of CPU or 256 MiB of memory"),
        ({"grammar": CHAIN}, "too complex: compiling it takes more than"),
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
        if not core.scheduler.has_work:
            add(core, f"other {others}", PROMPT, params(others, 20))
            others += 1
        assert core.stats().num_waiting >= 1
        step(core, answers)
    bad = answers["bad"]
    assert (bad.token_ids, bad.reason, bad.error_param) == ([], FinishReason.ERROR, "structured_outputs")
    assert bad.error is not None
    assert said in bad.error
    while core.has_work:
        step(core, answers)
    assert answers["late"].reason is FinishReason.LENGTH
    for index in range(others):
        assert (answers[f"other {index}"].error, len(answers[f"other {index}"].token_ids) > 0) == (None, True)
    assert sum(len(answers[f"other {index}"].token_ids) for index in range(others)) >= 1
    add(core, "again", PROMPT, params(**fields))
    step(core, answers)
    assert answers["again"].error == bad.error, "it is remembered, not tried again"


def test_what_gets_slower_with_each_token_fails_alone(core: EngineCore) -> None:
    slow = {f"slow {seed}": (PROMPT, params(seed, 400, grammar=AMBIGUOUS)) for seed in range(6)}
    others = {"other": (PROMPT, params(0, 30, regex="[ab]{60}")), "free": (PROMPT, params(0, 30))}
    answers = run(core, slow | others)
    failed = [answers[name] for name in slow if answers[name].error is not None]
    assert failed, "the random model ended every text before it grew"
    assert all("too complex" in str(answer.error) and answer.token_ids for answer in failed)
    assert answers["other"].error is answers["free"].error is None
    assert len(answers["other"].token_ids) > 0


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


def test_a_dead_nursery_is_replaced(core: EngineCore, tokenizer: Tokenizer) -> None:
    grammars = grammars_of(core)
    run(core, {"a": (PROMPT, params(regex="a{2}"))})
    assert grammars._nursery is not None
    os.kill(grammars._nursery._process.pid, signal.SIGKILL)
    grammars._nursery._process.wait()
    [answer] = run(core, {"a": (PROMPT, params(regex="c{2}"))}).values()
    assert text_of(answer, tokenizer) == "cc"


def test_a_nursery_that_dies_while_it_is_needed_is_no_fault_of_the_grammar(
    core: EngineCore, tokenizer: Tokenizer
) -> None:
    grammars = grammars_of(core)
    grammars.close()
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(regex="d{2}"))
    assert grammars._nursery is not None
    os.kill(grammars._nursery._process.pid, signal.SIGKILL)
    grammars._nursery._process.wait()
    while core.has_work:
        step(core, answers)
    assert answers["a"].error == f"structured_outputs: {NURSERY_ENDED}"
    [answer] = run(core, {"a": (PROMPT, params(regex="d{2}"))}).values()
    assert text_of(answer, tokenizer) == "dd", "it is tried again"


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


def test_end_tokens_that_the_grammar_allows_end_the_answer_whatever_the_model_says(
    core: EngineCore, tokenizer: Tokenizer
) -> None:
    ends, core.scheduler._eos = core.scheduler._eos, frozenset()
    try:
        [answer] = run(core, {"a": (PROMPT, params(0, 30, choice=["hello"]))}).values()
    finally:
        core.scheduler._eos = ends
    assert text_of(answer, tokenizer) == "hello"


def test_a_copy_of_a_sequence_has_a_session_of_its_own(core: EngineCore) -> None:
    from quire_testing.rows import make_row

    processor = GrammarProcessor(grammars_of(core))
    row, copy = make_row(params(regex="[ab]{3}")), make_row(params(regex="[ab]{3}"))
    run(core, {"a": (PROMPT, params(regex="[ab]{3}"))})
    first = processor._session(row)
    first.known = 2
    copy.scratch = dict(row.scratch)
    second = processor._session(copy)
    assert (second.known, second.grammar) == (0, first.grammar)
    assert second.number != first.number
    assert processor._session(row) is first is row.scratch[SESSION]


def test_a_grammar_that_is_compiled_anew_is_not_asked_before_it_is_there(core: EngineCore) -> None:
    grammar = grammars_of(core).get(params(regex="never[0-9]asked").structured_outputs)  # type: ignore[arg-type]
    assert not grammar.settled
    grammar.ask([Tokens(1, 0, [])])
    assert grammar.answer(np.zeros((1, 40), dtype=np.uint8), grammars_of(core).limits) == {0: NOT_READY}
    while not grammar.settled:
        grammars_of(core).poll(1.0)
    assert grammar.error is None


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
