"""Workers and nursery that are killed or stopped from outside, and how many there may be: nobody else notices, nothing is lost."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.engine.core import EngineCore
from quire.engine.grammar import client
from quire.request import FinishReason
from quire.text import Tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import Answer, add, finish, grammars_of, params, run, step, text_of, workers_of

PROMPT = list(range(5, 35))


@pytest.fixture
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder, max_model_len=256)
    yield core
    for pid in workers_of(core):
        os.kill(pid, signal.SIGCONT)
    grammars_of(core).close()


def kill_nursery(core: EngineCore) -> None:
    nursery = grammars_of(core)._nursery
    assert nursery is not None
    os.kill(nursery.pid, signal.SIGKILL)
    nursery._process.wait()


def until_tokens(core: EngineCore, answers: dict[str, Answer], name: str, count: int) -> None:
    while len(answers.get(name, Answer()).token_ids) < count:
        step(core, answers)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_in_mid_answer_is_made_anew_and_told_again(
    core: EngineCore, kill: signal.Signals
) -> None:
    given = {"bound": (PROMPT, params(1, 60, regex="[ab]{50}")), "free": (PROMPT, params(0, 60))}
    alone = run(core, given)
    answers: dict[str, Answer] = {}
    for name, (prompt, one) in given.items():
        add(core, name, prompt, one)
    until_tokens(core, answers, "bound", 5)
    [pid] = workers_of(core)
    os.kill(pid, kill)
    finish(core, answers)
    assert answers == alone
    assert core.stats().grammars.failures == {"lost": 1}  # type: ignore[union-attr]


def test_the_second_time_it_is_an_error_of_the_engine_that_says_try_again(core: EngineCore) -> None:
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, 200, regex="[ab]{190}"))
    add(core, "free", PROMPT, params(0, 60))
    for count in (5, 20):
        until_tokens(core, answers, "a", count)
        [pid] = workers_of(core)
        os.kill(pid, signal.SIGKILL)
    finish(core, answers)
    assert (answers["a"].reason, answers["a"].error_param) == (FinishReason.ERROR, None)
    assert answers["a"].error == "the process that held the grammar of this request was killed; send the request again"
    assert answers["free"].error is None
    assert run(core, {"b": (PROMPT, params(1, 9, regex="[ab]{190}"))})["b"].error is None, "it is not remembered"


def test_a_worker_that_was_killed_while_nobody_needed_it_is_made_anew(core: EngineCore, tokenizer: Tokenizer) -> None:
    run(core, {"a": (PROMPT, params(regex="a{2}"))})
    [pid] = workers_of(core)
    os.kill(pid, signal.SIGKILL)
    while pid in workers_of(core):
        pass
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(regex="a{2}"))
    until_tokens(core, answers, "a", 1)
    [pid] = workers_of(core)
    os.kill(pid, signal.SIGKILL)  # nor has it used up the second chance of who comes next
    finish(core, answers)
    assert text_of(answers["a"], tokenizer) == "aa"


def test_one_that_is_made_anew_goes_before_those_who_wait_for_its_place(folder: Path, tokenizer: Tokenizer) -> None:
    """Or both would wait for ever: one for a worker, the other for a place in the batch."""
    core = make_core(folder, max_grammars=1, max_num_seqs=1)
    answers: dict[str, Answer] = {}
    add(core, "first", PROMPT, params(0, 60, choice=["the first answer"]))
    until_tokens(core, answers, "first", 2)
    add(core, "second", PROMPT, params(0, 60, choice=["the second answer"]))
    step(core, answers)
    [pid] = workers_of(core)
    os.kill(pid, signal.SIGKILL)
    finish(core, answers)
    assert text_of(answers["first"], tokenizer) == "the first answer"
    assert text_of(answers["second"], tokenizer) == "the second answer"
    grammars_of(core).close()


def test_a_step_waits_for_masks_that_come_in_time(core: EngineCore) -> None:
    grammars_of(core)._clock = lambda: 0.0  # however slow this machine is
    answers: dict[str, Answer] = {}
    for index in range(3):
        add(core, str(index), PROMPT, params(index, 60, regex=f"[ab]{{{index + 20}}}"))
    while len(answers) < 3:
        step(core, answers)
    while len(answers) == 3 and not any(answer.reason for answer in answers.values()):
        before = {name: len(answer.token_ids) for name, answer in answers.items()}
        step(core, answers)
        assert all(len(answer.token_ids) == before[name] + 1 for name, answer in answers.items())
    finish(core, answers)


def test_nobody_waits_for_a_worker_that_is_stopped(core: EngineCore) -> None:
    """Neither who has no grammar nor who has another one."""
    given = {
        "bound": (PROMPT, params(1, 60, regex="[ab]{50}")),
        "other": (PROMPT, params(2, 60, regex="[cd]{50}")),
        "free": (PROMPT, params(0, 60)),
    }
    alone = run(core, given)
    answers: dict[str, Answer] = {}
    add(core, "bound", *given["bound"])
    until_tokens(core, answers, "bound", 3)
    pid = workers_of(core)[0]  # the first that was born
    add(core, "other", *given["other"])
    add(core, "free", *given["free"])
    until_tokens(core, answers, "other", 3)
    os.kill(pid, signal.SIGSTOP)
    step(core, answers)  # its mask may have been there
    before = {name: len(answer.token_ids) for name, answer in answers.items()}
    for _ in range(4):
        step(core, answers)
    assert len(answers["free"].token_ids) == before["free"] + 4
    assert len(answers["bound"].token_ids) <= before["bound"] + 1
    for _ in range(50):
        if len(answers["other"].token_ids) == before["other"]:
            step(core, answers)
    assert len(answers["other"].token_ids) > before["other"]
    os.kill(pid, signal.SIGCONT)
    finish(core, answers)
    assert answers == alone


def test_a_step_waits_a_tenth_of_a_second_for_all_of_its_masks_together(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, Answer] = {}
    for index in range(3):
        add(core, str(index), PROMPT, params(index, 60, regex=f"[ab]{{{index + 50}}}"))
    for index in range(3):
        until_tokens(core, answers, str(index), 2)
    for pid in workers_of(core):
        os.kill(pid, signal.SIGSTOP)
    step(core, answers)  # their masks may have been there
    now, waits = [0.0], []

    def wait(grammars: object, wait_s: float) -> None:
        if wait_s > 0:
            waits.append(wait_s)
            now[0] += 0.04

    grammars_of(core)._clock = lambda: now[0]
    monkeypatch.setattr(client, "_wait", wait)
    before = {name: len(answer.token_ids) for name, answer in answers.items()}
    step(core, answers)
    assert waits == pytest.approx([0.1, 0.06, 0.02])
    assert {name: len(answer.token_ids) for name, answer in answers.items()} == before


def test_a_worker_that_stays_silent_is_given_up(core: EngineCore) -> None:
    grammars = grammars_of(core)
    clock, ahead = grammars._clock, [0.0]
    grammars._clock = lambda: clock() + ahead[0]
    answers: dict[str, Answer] = {}
    add(core, "a", PROMPT, params(1, 60, regex="[ab]{50}"))
    until_tokens(core, answers, "a", 3)
    os.kill(workers_of(core)[0], signal.SIGSTOP)
    step(core, answers)
    step(core, answers)
    assert core.has_work
    ahead[0] += grammars.limits.mask_wall_s
    finish(core, answers)
    assert (answers["a"].reason, answers["a"].error_param) == (FinishReason.ERROR, None)
    assert answers["a"].error == "the grammar's worker was silent for 30 s; send the request again"
    assert core.stats().grammars.failures == {"timeout": 1}  # type: ignore[union-attr]


def test_a_compilation_that_gets_no_cpu_is_given_up(core: EngineCore) -> None:
    run(core, {"warm": (PROMPT, params(regex="a"))})
    grammars = grammars_of(core)
    assert grammars._nursery is not None
    os.kill(grammars._nursery.pid, signal.SIGSTOP)
    try:
        clock, ahead = grammars._clock, [0.0]
        grammars._clock = lambda: clock() + ahead[0]
        answers: dict[str, Answer] = {}
        add(core, "a", PROMPT, params(regex="never"))
        step(core, answers)
        assert answers == {}
        ahead[0] += grammars.limits.compile_wall_s
        finish(core, answers)
        assert answers["a"].error == "the grammar was not compiled within 300 s; send the request again"
    finally:
        os.kill(grammars._nursery.pid, signal.SIGCONT)


@pytest.mark.parametrize("before", [True, False])
def test_a_nursery_that_is_killed_is_replaced_and_what_it_was_asked_for_is_asked_again(
    core: EngineCore, tokenizer: Tokenizer, before: bool
) -> None:
    run(core, {"a": (PROMPT, params(regex="a{2}"))})
    if before:
        kill_nursery(core)
    answers: dict[str, Answer] = {}
    add(core, "b", PROMPT, params(regex="c{2}"))
    core._release()
    if not before:
        kill_nursery(core)
    finish(core, answers)
    assert text_of(answers["b"], tokenizer) == "cc"


def test_nobody_waits_until_a_large_grammar_is_read(core: EngineCore) -> None:
    """More than a socket holds, for a worker that is not born yet."""
    run(core, {"warm": (PROMPT, params(regex="a"))})
    nursery = grammars_of(core)._nursery
    assert nursery is not None
    os.kill(nursery.pid, signal.SIGSTOP)
    answers: dict[str, Answer] = {}
    try:
        add(core, "large", PROMPT, params(0, 9, json={"enum": [1, 2], "description": "d" * 250_000}))
        add(core, "free", PROMPT, params(0, 20))
        until_tokens(core, answers, "free", 5)
    finally:
        os.kill(nursery.pid, signal.SIGCONT)
    finish(core, answers)
    assert (answers["large"].error, answers["free"].error) == (None, None)
    assert answers["large"].reason is FinishReason.STOP


@pytest.mark.parametrize("what", ["socketpair", "Popen"])
def test_where_no_process_is_to_be_had_requests_fail_alone_and_the_next_may_find_one(
    core: EngineCore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    def none(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patch:
        patch.setattr(f"quire.engine.grammar.nursery.{'subprocess' if what == 'Popen' else 'socket'}.{what}", none)
        answers = run(core, {"bound": (PROMPT, params(regex="a{2}")), "free": (PROMPT, params(0, 5))})
    assert (answers["bound"].reason, answers["bound"].error_param) == (FinishReason.ERROR, None)
    assert answers["bound"].error == (
        "there is no process that builds grammars (Resource temporarily unavailable); send the request again"
    )
    assert answers["free"].error is None
    stats = core.stats().grammars
    assert stats is not None
    assert (stats.num_compilations, stats.failures) == (0, {"lost": 2}), "it was tried twice"
    assert text_of(run(core, {"next": (PROMPT, params(regex="a{2}"))})["next"], tokenizer) == "aa"


def test_workers_outlive_their_nursery(core: EngineCore) -> None:
    given = {"a": (PROMPT, params(1, 60, regex="[ab]{50}"))}
    alone = run(core, given)
    answers: dict[str, Answer] = {}
    add(core, "a", *given["a"])
    until_tokens(core, answers, "a", 5)
    kill_nursery(core)
    finish(core, answers)
    assert answers == alone
    assert core.stats().grammars.failures == {}, "nobody was lost and made anew"  # type: ignore[union-attr]


def test_there_are_never_more_workers_than_allowed_and_everybody_gets_one(
    folder: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = make_core(folder, max_grammars=2)
    grammars, seen = grammars_of(core), set()
    begin: Callable[..., None] = grammars._start
    monkeypatch.setattr(grammars, "_start", lambda grammar: (begin(grammar), seen.add(grammars.num_alive)))
    choices = [f"answer {i}" for i in range(6)]
    answers = run(core, {one: (PROMPT, params(choice=[one])) for one in choices})
    assert [text_of(answers[one], tokenizer) for one in choices] == choices
    assert max(seen) == 2
    assert core.stats().grammars.num_live <= 2  # type: ignore[union-attr]
    first, second = list(grammars._kept)
    add(core, "uses the older one", PROMPT, params(0, 60, choice=[choices[choices_index(first, choices)]]))
    core._release()
    run_one = {"new": (PROMPT, params(choice=["another"]))}
    add(core, "new", *run_one["new"])
    got: dict[str, Answer] = {}
    finish(core, got)
    assert first in grammars._kept, "it was in use"
    assert second not in grammars._kept, "it was not"
    grammars.close()


def choices_index(key: tuple[str, str], choices: list[str]) -> int:
    """Which of the choices a grammar's key is about."""
    return next(i for i, one in enumerate(choices) if one in key[1])


def test_a_worker_is_the_first_to_go_where_memory_runs_out(core: EngineCore) -> None:
    run(core, {"a": (PROMPT, params(regex="a"))})
    [pid] = workers_of(core)
    assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
