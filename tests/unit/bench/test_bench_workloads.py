"""The work is the same on every machine, and what docs and peers call W1 to W4."""

from __future__ import annotations

import pytest

from quire.bench.workloads import Span, mixed, shared_prefix, single, span, text, warm_up
from quire.errors import ConfigError


def encode(words: str) -> list[int]:
    return list(words.encode())


def test_w1_has_the_lengths_that_peers_were_measured_with() -> None:
    works = mixed(encode, 64, Span(16, 512), Span(16, 256))
    assert sum(len(work.prompt) for work in works) == 13788
    assert sum(work.num_tokens for work in works) == 8632
    assert sum(work.num_tokens for work in mixed(encode, 64, Span(16, 512), Span(16, 256), cap=64)) == 3627


def test_the_same_arguments_give_the_same_work() -> None:
    first, again = (mixed(encode, 5, Span(3, 40), Span(1, 9)) for _ in range(2))
    assert first == again
    assert len({tuple(work.prompt[:16]) for work in mixed(encode, 64, Span(16, 512), Span(1, 9))}) == 64
    assert all(3 <= len(work.prompt) <= 40 and 1 <= work.num_tokens <= 9 for work in first)
    assert single(encode, 12, 3, repeat=0) == single(encode, 12, 3, repeat=0) != single(encode, 12, 3, repeat=1)


def test_a_larger_count_begins_with_the_smaller() -> None:
    few, many = (mixed(encode, count, Span(3, 40), Span(1, 9)) for count in (3, 6))
    assert many[:3] == few


def test_prompts_share_exactly_the_prefix() -> None:
    works = shared_prefix(encode, 6, prefix=50, suffix=20, num_tokens=4)
    assert {tuple(work.prompt[:50]) for work in works} == {tuple(works[0].prompt[:50])}
    assert len({tuple(work.prompt[50:]) for work in works}) == 6
    assert {len(work.prompt) for work in works} == {70}


def test_warm_up_is_none_of_the_work() -> None:
    prompts = {tuple(work.prompt[:16]) for work in mixed(encode, 64, Span(16, 512), Span(16, 256))}
    assert not prompts & {tuple(work.prompt) for work in warm_up(encode, 4)}


def test_a_tokenizer_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokens of English text"):
        text(lambda words: [1] if words == "1. " else [], 4, seed=1)


@pytest.mark.parametrize(("given", "expected"), [("7", Span(7, 7)), ("16:512", Span(16, 512)), ("3:3", Span(3, 3))])
def test_spans(given: str, expected: Span) -> None:
    assert span(given, flag="--x") == expected
    assert span(str(expected), flag="--x") == expected


@pytest.mark.parametrize("given", ["", "0", "5:4", "a", "1:2:3", "-1", "1:", "²"])
def test_bad_spans_name_the_flag(given: str) -> None:
    with pytest.raises(ConfigError, match="--prompt-tokens must be"):
        span(given, flag="--prompt-tokens")
