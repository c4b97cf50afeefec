"""Incremental decoding and stop strings: what is sent is exactly what a whole decode would give, cut at the first stop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.text.pieces import Pieces
from quire.text.stream import Detokenizer, StopMatcher, TextStream
from tiny_text import VOCAB_SIZE, build_tokenizer

BACKEND = build_tokenizer()
PIECES = Pieces(BACKEND, {0, 1, 2})
IDS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)
EMOJI = "🎉"


def ids_of(text: str) -> list[int]:
    return list(BACKEND.encode(text).ids)


def cut(ids: list[int], sizes: list[int]) -> list[list[int]]:
    """The ids in groups of the given sizes, the rest as one."""
    groups, at = [], 0
    for size in sizes:
        groups.append(ids[at : at + size])
        at += size
    return [*groups, ids[at:]]


@given(IDS, st.lists(st.integers(0, 5), max_size=10))
def test_joined_deltas_equal_the_whole_decode_of_the_reference(ids: list[int], sizes: list[int]) -> None:
    detokenizer = Detokenizer(PIECES)
    joined = "".join(detokenizer.push(group) for group in cut(ids, sizes)) + detokenizer.flush()
    assert joined == BACKEND.decode(ids, skip_special_tokens=True)


@given(st.text(max_size=20), st.lists(st.integers(0, 3), max_size=20))
def test_no_delta_has_a_replacement_character_that_the_text_lacks(text: str, sizes: list[int]) -> None:
    detokenizer = Detokenizer(PIECES)
    deltas = [detokenizer.push(group) for group in cut(ids_of(text), sizes)]
    assert "".join(deltas) == text
    assert detokenizer.flush() == ""


def test_a_character_goes_out_with_its_last_byte() -> None:
    detokenizer = Detokenizer(PIECES)
    assert [detokenizer.push([i]) for i in ids_of(EMOJI + "a")] == ["", "", "", EMOJI, "a"]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_dangling_bytes_are_one_replacement_character(kept: int) -> None:
    stream = TextStream(PIECES)
    ids = ids_of("a" + EMOJI)
    assert stream.push(ids[: 1 + kept], final=True) == "a\ufffd"
    assert stream.num_tokens == 1 + kept


def test_special_tokens_are_no_text_unless_asked_for() -> None:
    ids = [1, *ids_of("hello"), 2]
    assert TextStream(PIECES).push(ids, final=True) == "hello"
    assert TextStream(PIECES, skip_special=False).push(ids, final=True) == "<|im_start|>hello<|im_end|>"


def reference(text: str, stops: list[str], early: int = 0) -> tuple[str, str | None]:
    """Straight from the rule: walk the text, stop at the first character behind the `early` first that completes a stop string."""
    for end in range(early + 1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


SMALL = st.text("ab", min_size=0, max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


@given(SMALL, STOPS, st.lists(st.integers(0, 4), max_size=6))
def test_stop_strings_do_not_depend_on_how_the_text_is_cut(text: str, stops: list[str], sizes: list[int]) -> None:
    matcher, out, at = StopMatcher(stops), "", 0
    for size in [*sizes, len(text)]:
        out += matcher.push(text[at : at + size])
        at += size
        assert not any(stop in out for stop in stops)
    found = matcher.found
    out += matcher.flush()
    assert (out, found) == reference(text, stops)


@pytest.mark.parametrize(
    ("text", "stops", "left", "found"),
    [
        ("abc UVW", ["UV"], "abc ", "UV"),  # ends inside a token
        ("one two three", ["three", "two"], "one ", "two"),  # the later-listed comes first in the text
        ("hello STO", ["STOP"], "hello STO", None),  # only the beginning of one: released at the end
        ("xyz", ["z", "yz"], "x", "yz"),  # complete with the same character: the longer one
    ],
)
def test_stop_strings(text: str, stops: list[str], left: str, found: str | None) -> None:
    stream = TextStream(PIECES, stop=stops)
    out = "".join(stream.push([i]) for i in ids_of(text)) + stream.push([], final=True)
    assert (out, stream.stop_found) == (left, found)


@given(SMALL, STOPS, st.integers(0, 4), st.lists(st.integers(0, 4), max_size=6))
def test_the_stop_string_may_stay_and_early_ones_may_not_count(
    text: str, stops: list[str], min_tokens: int, sizes: list[int]
) -> None:
    ids = [ids_of(char)[0] for char in text]
    for keep in (False, True):
        stream = TextStream(PIECES, stop=stops, include_stop=keep, min_tokens=min_tokens)
        out = "".join(stream.push(group) for group in cut(ids, sizes)) + stream.push([], final=True)
        left, found = reference(text, stops, early=min_tokens)
        assert stream.stop_found == found
        assert out == left + (found if keep and found else "")


def test_a_stop_string_may_begin_before_min_tokens_and_end_behind() -> None:
    stream = TextStream(PIECES, stop=["\n\nUser:"], min_tokens=5)
    out = "".join(stream.push([i]) for i in ids_of("abcd\n\nUser: x"))
    assert (out, stream.stop_found, stream.num_tokens) == ("abcd", "\n\nUser:", len("abcd\n\nUser:"))


@pytest.mark.parametrize(
    ("ids", "stop_token_id", "left"),
    [
        ([*ids_of("ax"), 2], 2, "ax"),  # the model ended the turn with its token
        ([ids_of(char)[0] for char in "ax<|im_end|>b"], None, "ax"),  # it spelled the token out
    ],
)
def test_a_stop_string_that_spells_a_special_token(ids: list[int], stop_token_id: int | None, left: str) -> None:
    for keep in (False, True):
        stream = TextStream(PIECES, stop=["<|im_end|>"], stop_spellings={2: "<|im_end|>"}, include_stop=keep)
        assert stream.push(ids, final=True, stop_token_id=stop_token_id) == left + ("<|im_end|>" if keep else "")


def test_an_end_token_that_is_no_stop_string_is_no_text() -> None:
    stream = TextStream(PIECES, stop=["x"], stop_spellings={}, include_stop=True)
    assert stream.push([*ids_of("a" + EMOJI)[:3], 2], final=True, stop_token_id=2) == "a\ufffd"


def test_the_stop_token_may_be_part_of_the_text() -> None:
    ids = ids_of("axy")
    stream = TextStream(PIECES, include_stop=True)
    assert stream.push(ids, final=True, stop_token_id=ids[-1]) == "axy"
    special = TextStream(PIECES, include_stop=True, skip_special=False)
    assert special.push([*ids, 2], final=True, stop_token_id=2) == "axy<|im_end|>"


def test_silent_streams_count_tokens() -> None:
    stream = TextStream(PIECES, silent=True)
    assert stream.push(ids_of("abc")) + stream.push(ids_of("d"), final=True) == ""
    assert stream.num_tokens == 4


def test_tokens_after_a_stop_string_are_not_consumed() -> None:
    stream = TextStream(PIECES, stop=["b"])
    assert stream.push(ids_of("abcdef")) == "a"
    assert stream.num_tokens == 2
    assert stream.push(ids_of("ghi"), final=True) == ""
    assert stream.num_tokens == 2


def test_the_token_that_ends_the_answer_is_no_text_but_counts() -> None:
    stream = TextStream(PIECES, stop=["xyz"])
    ids = ids_of("axy")
    assert stream.push(ids, final=True, stop_token_id=ids[-1]) == "ax"
    assert stream.num_tokens == 3
