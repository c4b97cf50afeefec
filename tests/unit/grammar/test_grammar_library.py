"""What the grammar library is told: how JSON is written, and that nothing of a request can change it."""

from __future__ import annotations

import json
import mmap
from multiprocessing import Pipe
from typing import Any

import llguidance
import pytest

from quire.engine.grammar import library
from quire.engine.grammar.protocol import Compile, Limits, Settings, Step, Tokens, faults_decoder, mask_words
from quire.engine.grammar.worker import Nursery, Worker
from quire.text import Tokenizer, load_tokenizer
from tiny_text import VOCAB_SIZE, write_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tokenizer(tmp_path_factory.mktemp("text")))


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    return library.vocabulary(tokenizer, VOCAB_SIZE, tokenizer.eos_ids)


def accepts(tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Whether a text is whole by a grammar."""
    kind = "json_object" if schema is None else "json"
    matcher = library.compile_grammar(tokens, Compile(kind, "" if schema is None else json.dumps(schema)))
    ids = tokenizer.encode_text(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1}', True),
        ('{"a": 1, "b": [1, {}]}', True),
        ('{\n  "a": [\n    1,\n    2\n  ]\n}', True),
        ('{\n\t\t"a": 1\n}', True),
        ("{" + "\n" + " " * 32 + "}", True),
        ("{" + "\n" + " " * 33 + "}", False),
        ('{  "a": 1}', False),
        ('{\n\n"a": 1}', False),
        (' {"a":1}', False),
        ('{"a":1}\n', False),
        ("[]", False),
        ('{"a": "\\u00e9"}', False),
        ('{"a": "é\\n\\u0001"}', True),
        ('{"a": "<|im_end|>"}', True),
    ],
)
@pytest.mark.parametrize(
    "schema",
    [
        None,
        {
            "type": "object",
            "x-guidance": {"whitespace_pattern": "[ \n]*", "whitespace_flexible": True, "lenient": True},
        },
    ],
    ids=["object", "schema that asks for more"],
)
def test_blanks_are_bounded_and_characters_are_not_escaped_for_nothing(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, schema: Any, text: str, expected: bool
) -> None:
    assert accepts(tokens, tokenizer, schema, text) is expected


def test_a_mask_has_a_bit_for_every_id_and_allows_no_id_that_is_no_token(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer
) -> None:
    size = mask_words(VOCAB_SIZE) * 4
    matcher = library.compile_grammar(tokens, Compile("regex", "(.|\n)*"))
    mask = library.mask_of(matcher, size)
    allowed = {i for i in range(size * 8) if mask[i // 8] >> i % 8 & 1}
    assert len(mask) == size
    assert set(tokenizer.eos_ids) <= allowed, "an empty text may end"
    assert allowed - set(tokenizer.eos_ids) <= set(range(3, len(tokenizer)))
    assert set(tokenizer.encode_text("hello")) <= allowed


def settings() -> Settings:
    """Nothing of them binds."""
    limits = Limits(
        compile_cpu_s=1,
        mask_cpu_s=9,
        mean_cpu_s=9,
        memory_bytes=1,
        total_bytes=2,
        num_compiling=1,
        num_grammars=1,
        spec_bytes=1,
    )
    return Settings(tokenizer="", revision="", vocab_size=VOCAB_SIZE, eos_token_ids=[], limits=limits)


def test_a_worker_tells_with_masks_what_it_holds_beside_what_it_inherited(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer
) -> None:
    root = library.compile_grammar(tokens, Compile("regex", "a"))
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(Nursery(settings(), tokens, [*tokenizer.eos_ids]), theirs)

        def held() -> int:
            worker._step(Step([], []), root)
            told = faults_decoder.decode(ours.recv_bytes())
            ours.recv_bytes()
            return told.memory_bytes

        before = held()
        with mmap.mmap(-1, 256 << 20):
            assert before + (256 << 20) <= held() < 1 << 30


def test_a_worker_keeps_what_it_was_told_of_a_sequence_until_that_has_ended(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer
) -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        worker = Worker(Nursery(settings(), tokens, [*tokenizer.eos_ids]), theirs)
        root = library.compile_grammar(tokens, Compile("choice", '["ab","cd"]'))
        first, second = (tokenizer.encode_text(text) for text in ("a", "b"))

        def ask(rows: list[Tokens], ended: list[int]) -> tuple[dict[int, str], set[int]]:
            worker._step(Step(rows, ended), root)
            faults = faults_decoder.decode(ours.recv_bytes()).by_place
            mask = ours.recv_bytes()[: mask_words(VOCAB_SIZE) * 4]
            return faults, {i for i in range(VOCAB_SIZE) if mask[i // 8] >> i % 8 & 1}

        assert ask([Tokens(1, 0, first), Tokens(2, 0, [])], [])[1] == set(second)
        faults, allowed = ask([Tokens(1, 1, second)], [])
        assert (faults, allowed) == ({}, set(tokenizer.eos_ids))
        assert list(worker._sessions) == [1, 2]
        assert ask([Tokens(2, 1, [])], [1])[0] == {0: "1 tokens should be known, but 0 are"}
        assert list(worker._sessions) == [2]


def test_true_is_any_value_and_false_none(tokens: llguidance.LLTokenizer, tokenizer: Tokenizer) -> None:
    assert accepts(tokens, tokenizer, True, "[1, null]")
    with pytest.raises(library.GrammarError, match="the schema is false"):
        accepts(tokens, tokenizer, False, "1")


def test_a_schema_that_no_text_ever_ends_says_so(tokens: llguidance.LLTokenizer, tokenizer: Tokenizer) -> None:
    for schema in ({"$ref": "#"}, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}):
        with pytest.raises(library.GrammarError, match=r"^no text satisfies it$"):
            accepts(tokens, tokenizer, schema, "1")


def test_large_vocabularies_whose_size_is_a_multiple_of_the_word(tokenizer: Tokenizer) -> None:
    tokens = library.vocabulary(tokenizer, 320, tokenizer.eos_ids)
    matcher = library.compile_grammar(tokens, Compile("regex", "hello"))
    assert len(library.mask_of(matcher, mask_words(320) * 4)) == 40
