"""Who gets memory for a grammar, who waits, and who goes where there is too little: 192 MiB for all, 64 for each, unless it is said."""

from __future__ import annotations

from typing import Any

import pytest

from quire.engine.grammar.client import GRAMMAR
from quire.engine.grammar.handle import Grammar
from quire.request import SamplingParams
from quire.structured import Reason, structured_output
from quire_testing.scripted_workers import MIB, Script


def failed(grammar: Grammar) -> str:
    """Why it is of no use any more, as a request hears it; and that the request is not at fault."""
    assert grammar.failure is not None
    assert grammar.failure.reason is Reason.NO_ROOM
    fault = grammar.failure.fault(SamplingParams(structured_outputs=structured_output(regex="a")))
    assert (fault.passing, fault.param) == (True, None)
    return fault.message


def test_a_new_grammar_waits_while_those_in_use_leave_no_room_and_harms_nobody() -> None:
    script = Script()
    held = {name: script.ready(name, 50) for name in "abc"}
    new = script.get("new")
    script.grammars.poll()
    assert (script.begun(), new.settled) == (set("abc"), False)
    assert script.grammars.taken_bytes == 150 * MIB
    del held["b"]
    script.grammars.poll()
    assert script.begun() == {"a", "c", "new"}
    script.worker("new").compiled(64)
    script.grammars.poll()
    assert new.failure is held["a"].failure is held["c"].failure is None
    assert script.grammars.taken_bytes == 164 * MIB


def test_so_many_are_compiled_as_have_room_whatever_they_come_to_hold() -> None:
    script = Script()
    running = script.ready("running", 40)
    new = [script.get(name) for name in ("first", "second", "third")]
    assert script.begun() == {"running", "first", "second"}, "40 + 64 + 64"
    script.worker("first").compiled(60)
    script.grammars.poll()
    assert script.begun() == {"running", "first", "second"}, "40 + 60 + 64, and no 64 more"
    script.worker("second").compiled(20)
    script.grammars.poll()
    assert script.begun() == {"running", "first", "second", "third"}
    assert running.failure is new[0].failure is new[1].failure is None


def test_nobody_is_overtaken_and_who_has_left_holds_nobody_up() -> None:
    script = Script(num_compiling=1)
    running = script.ready("running", 10)
    first, second, third = script.get("first"), script.get("second"), script.get("third")
    assert script.begun() == {"running", "first"}
    del second
    script.worker("first").compiled(10)
    script.grammars.poll()
    assert script.begun() == {"running", "first", "third"}
    assert (running.settled, first.settled, third.settled) == (True, True, False)


def test_for_room_the_longest_unused_ends_and_no_more_than_needed() -> None:
    script = Script()
    for name in "abc":
        script.ready(name, 50)
    script.get("new")
    assert script.begun() == {"b", "c", "new"}


def test_what_was_asked_for_again_is_not_the_longest_unused() -> None:
    script = Script()
    for name in "abc":
        script.ready(name, 50)
    script.get("a")
    script.get("new")
    assert script.begun() == {"a", "c", "new"}


def test_for_a_place_among_those_that_may_live_the_longest_unused_ends() -> None:
    script = Script(num_grammars=3)
    for name in "abc":
        script.ready(name, 1)
    script.get("new")
    assert script.begun() == {"b", "c", "new"}


def crowd() -> tuple[Script, dict[str, Grammar]]:
    """Four in use, which hold 130 MiB."""
    script = Script()
    return script, {name: script.ready(name, held) for name, held in {"b": 60, "c": 60, "a": 5, "d": 5}.items()}


def test_where_those_in_use_grow_beyond_the_bound_that_ends_which_has_grown_most() -> None:
    script, held = crowd()
    script.grows("a", held["a"], 60)
    script.grows("c", held["c"], 62)
    assert {grammar.failure for grammar in held.values()} == {None}, "60 + 62 + 60 + 5"
    session = script.grows("d", held["d"], 12)
    assert session.mask is not None
    said = "all grammars together may hold 192 MiB of memory, and that of this request has grown most"
    assert failed(held.pop("a")) == f"{said}; send the request again"
    assert {grammar.failure for grammar in held.values()} == {None}, "neither the largest nor the last to grow"
    assert script.begun() == set("bcd")
    assert script.grammars.stats(drain=False).failures == {"no_room": 1}


def test_before_that_what_nobody_uses_ends() -> None:
    script, held = crowd()
    del held["b"], held["d"]
    script.grows("a", held["a"], 64)
    assert script.begun() == set("abcd"), "189"
    script.grows("c", held["c"], 64)
    assert script.begun() == set("acd"), "193, but for b"
    assert {grammar.failure for grammar in held.values()} == {None}


def test_it_is_not_remembered() -> None:
    script, held = crowd()
    script.grows("a", held["a"], 64)
    script.grows("c", held["c"], 64)
    failed(held["a"])
    del held["b"], held["c"]
    again = script.ready("a", 5)
    assert again is not held["a"]
    assert again.failure is None


def test_before_that_what_compiles_waits_again_and_goes_on_first() -> None:
    script = Script()
    held = {name: script.ready(name, 40) for name in "abc"}
    new, later = script.get("new"), script.get("later")
    assert script.begun() == {"a", "b", "c", "new"}
    script.grows("a", held["a"], 50)
    script.grammars.poll()
    assert script.begun() == set("abc"), "130, and 64 are too many"
    assert {grammar.failure for grammar in (new, later, *held.values())} == {None}
    del held["b"]
    script.grammars.poll()
    assert script.begun() == {"a", "c", "new"}
    script.worker("new").compiled(30)
    script.grammars.poll()
    assert (new.settled, new.failure, new.taken_bytes) == (True, None, 30 * MIB)
    assert later.failure is None


@pytest.mark.parametrize(("urgent", "stays"), [(False, "first"), (True, "second")])
def test_of_several_the_last_to_begin_waits_unless_sequences_run_that_wait_for_it(urgent: bool, stays: str) -> None:
    script = Script(memory_mib=32)
    held = {name: script.ready(name, 30) for name in "abcd"}
    both = script.get("first"), script.get("second", urgent=urgent)
    assert script.begun() == {*"abcd", "first", "second"}
    script.grows("a", held["a"], 40)
    assert script.begun() == {*"abcd", stays}
    assert {grammar.failure for grammar in both} == {None}


class Sequence:
    """One that runs with a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self.params = SamplingParams(structured_outputs=grammar.output)
        self.scratch: dict[str, Any] = {GRAMMAR: grammar}


def kill(script: Script, name: str, held: Sequence | Grammar) -> None:
    """Its worker, which is noticed."""
    script.worker(name).killed()
    grammar = held if isinstance(held, Grammar) else held.scratch[GRAMMAR]
    script.grammars.collect([grammar], 0.0)
    assert grammar.failure is not None
    assert grammar.failure.reason is Reason.LOST


def one_with_a_grammar() -> tuple[Script, Sequence, Grammar, Grammar]:
    """A sequence that runs with `a`, one grammar that compiles, and one that waits for it, as only one may compile."""
    script = Script(num_compiling=1)
    sequence = Sequence(script.ready("a", 10))
    return script, sequence, script.get("first"), script.get("later")


def test_what_was_lost_goes_before_those_that_wait() -> None:
    script, sequence, first, later = one_with_a_grammar()
    kill(script, "a", sequence)
    again = script.grammars.of(sequence)
    assert script.begun() == {"first"}
    script.worker("first").compiled(10)
    script.grammars.poll()
    assert script.begun() == {"first", "a"}
    script.worker("a").compiled(10)
    script.grammars.poll()
    assert (again.settled, first.settled, later.settled) == (True, True, False)
    assert script.begun() == {"first", "a", "later"}


def test_so_it_does_where_somebody_new_finds_it_lost() -> None:
    script, sequence, first, later = one_with_a_grammar()
    script.worker("a").killed()
    new = script.get("a")
    assert script.grammars.of(sequence) is new
    script.worker("first").compiled(10)
    script.grammars.poll()
    assert script.begun() == {"first", "a"}
    assert (first.settled, new.settled, later.settled) == (True, False, False)


def test_what_was_lost_waits_for_what_compiles() -> None:
    script = Script()
    sequence, others = Sequence(script.ready("a", 5)), [script.ready("b", 60), script.ready("c", 20)]
    new = script.get("new")
    kill(script, "a", sequence)
    again = script.grammars.of(sequence)
    assert script.begun() == {"b", "c", "new"}, "60 + 20 + 64, and no 64 more"
    script.worker("new").compiled(20)
    script.grammars.poll()
    assert script.begun() == {"b", "c", "new", "a"}
    assert {grammar.failure for grammar in (again, new, *others)} == {None}


def test_what_was_lost_waits_for_nobody_else_who_may_wait_for_the_place_of_its_sequence() -> None:
    script = Script()
    sequence = Sequence(script.ready("a", 5))
    others = [script.ready(name, 60) for name in "bcd"]
    later = script.get("later")
    kill(script, "a", sequence)
    said = "the process that held the grammar of this request was killed, and there is no room for another"
    assert failed(script.grammars.of(sequence)) == f"{said}; send the request again"
    assert script.begun() == set("bcd")
    assert {grammar.failure for grammar in (later, *others)} == {None}
    assert script.grammars.stats(drain=False).failures == {"lost": 1, "no_room": 1}


def test_so_it_does_where_somebody_new_found_it_lost_and_left() -> None:
    script, sequence, first, later = one_with_a_grammar()
    script.worker("a").killed()
    new = script.get("a")
    del new
    again = script.grammars.of(sequence)
    script.worker("first").compiled(10)
    script.grammars.poll()
    assert script.begun() == {"first", "a"}
    assert (first.settled, again.settled, later.settled) == (True, False, False)


def test_it_goes_before_those_that_wait_again() -> None:
    script = Script(memory_mib=32, num_compiling=1)
    held = {name: script.ready(name, 30) for name in "abcd"}
    new, urgent = script.get("new"), script.get("urgent", urgent=True)
    script.grows("a", held["a"], 64)
    assert script.begun() == {*"abcd", "new"}
    script.grows("c", held["c"], 40)
    assert script.begun() == set("abcd")
    del held["d"]
    script.grammars.poll()
    assert script.begun() == {*"abc", "urgent"}
    assert {grammar.failure for grammar in (new, urgent, *held.values())} == {None}


def test_nothing_ends_for_the_room_of_who_has_left() -> None:
    script = Script(num_compiling=1)
    script.ready("unused", 64)
    running = script.ready("running", 60)
    first, gone = script.get("first"), script.get("gone")
    del gone
    script.worker("first").compiled(64)
    script.grammars.poll()
    assert script.begun() == {"unused", "running", "first"}
    assert running.failure is first.failure is None


def test_what_cannot_be_built_is_remembered_for_the_last_that_were_asked_for() -> None:
    script = Script(num_grammars=2)
    for name in "abc":
        script.get(name)
        script.worker(name).refused()
        script.grammars.poll()
    for name in "cb":
        failure = script.get(name).failure
        assert failure is not None
        assert failure.reason is Reason.INVALID
    assert script.begun() == set()
    assert script.get("a").failure is None
    assert script.begun() == {"a"}
