"""Grammars in EBNF: the same texts as their Lark, whatever is escaped, and one sentence where they are wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import llguidance
import pytest

from quire.engine.core import EngineCore
from quire.engine.grammar import library
from quire.engine.grammar.ebnf import is_ebnf
from quire.engine.grammar.protocol import Compile
from quire.request import FinishReason
from quire.text import Tokenizer
from quire_testing.cores import make_core
from quire_testing.structured import grammars_of, params, run, text_of
from tiny_text import VOCAB_SIZE

PROMPT = list(range(5, 35))
SUMS = """
# sums, as people write them
root  ::= ws expr
expr  ::= term (op term)*
term  ::= num | "(" ws expr ")" ws
num   ::= [1-9] [0-9]{0,2} ws
op    ::= ("+" | "-") ws
ws    ::= " "?   # at most one
"""


@pytest.fixture(scope="module")
def core(folder: Path) -> Iterator[EngineCore]:
    core = make_core(folder)
    yield core
    grammars_of(core).close()


@pytest.fixture(scope="module")
def tokens(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    return library.vocabulary(tokenizer, VOCAB_SIZE, tokenizer.eos_ids)


def accepts(tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, grammar: str, text: str) -> bool:
    """Whether a text is whole by a grammar."""
    matcher = library.compile_grammar(tokens, Compile("grammar", grammar))
    ids = tokenizer.encode_text(text)
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", True), (" 12 +3", True), ("(1 -(2))", True), ("", False), ("0", False), ("1+", False), ("1234", False)],
)
def test_what_it_derives_and_nothing_else(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, text: str, expected: bool
) -> None:
    assert accepts(tokens, tokenizer, SUMS, text) is expected


def test_answers_are_texts_of_the_grammar(core: EngineCore, tokenizer: Tokenizer) -> None:
    grammar = 'root ::= "<" item ("," item){2} ">"\nitem ::= [a-c]{1,3} | "\\"" [xyz] "\\""'
    requests = {str(seed): (PROMPT, params(seed, 60, grammar=grammar)) for seed in range(6)}
    texts = [text_of(answer, tokenizer) for answer in run(core, requests).values()]
    item = '([a-c]{1,3}|"[xyz]")'
    assert all(re.fullmatch(f"<{item}(,{item}){{2}}>", text) for text in texts)
    assert len(set(texts)) > 1


ESCAPES = [
    (r'root ::= "a\"b\\c\n\td"', 'a"b\\c\n\td'),
    (r'root ::= "\x41\x2d\u00e9\u4E2D\U0001F98A"', "A-é中🦊"),
    (r'root ::= "\[x\]" "\u0022"', '[x]"'),
    (r"root ::= [\x41-\x43] [\u00e0-\u00ef] [\U0001F98A]", "Bé🦊"),
    (r"root ::= [\]] [\[] [\\] [\x2d] [\x5e] [/] [\x26]", "][\\-^/&"),
    (r'root ::= [^\n"] [a\x2dz] "#" # "[', "x-#"),
    ('root ::= "é" [ü-ÿ] "🦊"', "éý🦊"),
    ('root ::= "two\nlines"', "two\nlines"),
    ('root ::= (\n  "a" |\n  "b"\n){4}\r\n', "abba"),
    ('root ::= camelCase-rule\ncamelCase-rule ::= ("x"){4,} "" | .', "xxxx"),
    (r'root ::= "\x1b[0m\x00\x7f\u0001\U0000000b"', "\x1b[0m\x00\x7f\x01\x0b"),
    ('root ::= "a\tb\x0bc\x7fd"\t# not\tthis', "a\tb\x0bc\x7fd"),
    ('root ::= "one\rtwo\r\n" "\\t"', "one\rtwo\r\n\t"),
    ("root ::= [\t] [\n] [\x00-\x08] [\x7f] [^\t\n]", "\t\n\x01\x7fx"),
    (r"root ::= [\t] [\n-\r] [\x00-\x08] [^\x00-\x20\x7f]", "\t\x0b\x00x"),
    (r"root ::= [a&&b] [a~~b] [+--] [a-] [-z] [\-x] [$.-0] [^^-a] [{}(|)*+?]", "a~,---/b|"),
    (r'root ::= "\-&&[/]~" [#] "]"', "-&&[/]~#]"),
    ("root ::= . .{2}", "\né🦊"),
    (r'root ::= "\"[.]" "\u0041"', '"[.]A'),
    (r'root ::= "\xe9" [\xe8-\xea] "\x80"', "éé\x80"),
    ("root ::= [^a] [^^] [^\\x5e]", "^a]"),
    ('root ::= b # one "\rb ::= "\\u0041" # \'"\r', "A"),
]


@pytest.mark.parametrize(("grammar", "text"), ESCAPES, ids=lambda value: ascii(value))
def test_characters_however_they_are_written(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, grammar: str, text: str
) -> None:
    assert is_ebnf(grammar)
    assert accepts(tokens, tokenizer, grammar, text)
    assert not accepts(tokens, tokenizer, grammar, text + "!")
    assert not accepts(tokens, tokenizer, grammar, text[:-1])


@pytest.mark.parametrize(
    "grammar", ['start: "::="', 'start: a\na: "x ::= y"\n // b ::= c', "%llguidance {}\nstart: /a::=b/"]
)
def test_lark_stays_lark(tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, grammar: str) -> None:
    assert not is_ebnf(grammar)
    library.compile_grammar(tokens, Compile("grammar", grammar))


GREEDY = [
    ('root ::= word " bye"\nword ::= [a-z ]+', False),
    ('root ::= word " bye"\nword ::= char+\nchar ::= [a-z ]', False),
    ('start: /[a-z ]+/ " bye"', False),
    ('start: WORD " bye"\nWORD: /[a-z ]+/', False),
    ('root ::= [a-z ]+ " bye"', True),
    ('root ::= char+ " bye"\nchar ::= [a-z ]', True),
    ('root ::= word " bye"\nword ::= [a-z ] word | [a-z ]', True),
    ('root ::= word " bye"\nword ::= [a-z]+', True),
    ('start: WHOLE\nWHOLE: WORD " bye"\nWORD: /[a-z ]+/', True),
]


@pytest.mark.parametrize(("grammar", "ends"), GREEDY, ids=lambda value: ascii(value))
def test_a_rule_of_characters_only_takes_all_that_it_can(
    tokens: llguidance.LLTokenizer, tokenizer: Tokenizer, grammar: str, ends: bool
) -> None:
    """As docs/server.md says, and how it is written otherwise."""
    assert accepts(tokens, tokenizer, grammar, "hello bye") is ends


DEEP = "root ::= " + "(" * 5000 + '"a"' + ")" * 5000
CHAIN = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nr3000 ::= "a"'


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('root ::= "a', "Unexpected end of input at line 1"),
        ('root ::= "a" )', "Expected name at line 1"),
        ('root ::= ("a"', "Expected ')' at line 1"),
        ('root ::= "a"\nb := "c"', "Expected ::= at line 2"),
        ("root ::= unknown", "Rule 'unknown' not found"),
        ('expr ::= "a"', "No 'root' rule found"),
        (r'root ::= "\q"', r"Invalid escape sequence \q"),
        (r'root ::= "\x4"', r"Invalid \x escape sequence: \x4"),
        (r"root ::= [a-\d]", r"Invalid escape sequence \d"),
        ('root ::= "a\\\nb"', "Invalid escape sequence"),
        ("root ::= [z-a]", "as Lark, invalid character class range"),
        ("root ::= []", "as Lark, unclosed character class"),
        (r'root ::= "\U99999999"', r"\U99999999 is no character"),
        (r"root ::= [\uD800]", r"\uD800 is no character"),
        ('root ::= "a"{2,1}', "as Lark, line 3, column 8: range end must be >= start"),
        ("root ::= [", "Unexpected end of input"),
        ('root ::= "a" \\', "Expected name at line 1"),
        ('root ::= "a\\', "it ends in the middle of an escape"),
        ('root ::= "a"\nstart ::= "b"', "Rule 'start' already exists"),
        (DEEP, "nested too deeply"),
        ("root ::= root", ""),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_is_wrong_is_said_in_one_line_that_names_the_field(core: EngineCore, grammar: str, said: str) -> None:
    [answer] = run(core, {"a": (PROMPT, params(grammar=grammar))}).values()
    assert (answer.token_ids, answer.reason, answer.error_param) == ([], FinishReason.ERROR, "structured_outputs")
    assert (answer.error or "").startswith("structured_outputs: ")
    assert said in (answer.error or "")
    assert "\n" not in (answer.error or "")


@pytest.mark.parametrize(
    ("before", "line"),
    [
        ('root ::= "a', 1),
        ('root ::= "one\ntwo\n"\n', 4),
        ("root ::= [\n]\r\n", 3),
        ('root ::= "\n\n" [^\n-] . "\x41\n"\n# "[\n', 7),
        ("root ::= [a\n-z\n]\n", 4),
    ],
    ids=ascii,
)
def test_lines_and_places_are_those_of_what_was_sent(tokens: llguidance.LLTokenizer, before: str, line: int) -> None:
    """Whatever became of line breaks in texts and classes on the way."""
    bad = "" if line == 1 else r'b ::= "-\n" "x\qy"'
    with pytest.raises(library.GrammarError) as caught:
        library.compile_grammar(tokens, Compile("grammar", before + bad))
    sent = before + bad
    place = len(sent) if line == 1 else sent.index("\\qy")
    where = f"at line {line}, {sent[max(place - 20, 0) : place]!r} ^ {sent[place : place + 20]!r}"
    assert where in str(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("before", "bad"),
    [
        (r"root ::= [\x41-", r"\q]"),
        (r"root ::= [\x41-\x42\u00e9", r"\q-z]"),
        ('root ::= "\\\\\\n\n', r'\q"'),
        (r'root ::= "\x2d', r'\x4"'),
        ('root ::= "', r'\ud800"'),
        (r"root ::= [\x41-", r"\uD800]"),
        ('root ::= "\\u00e9\n" . [^\\x2d', r'\U00110000-z] "\q"'),
        (r'root ::= "\\', ""),
    ],
    ids=ascii,
)
def test_an_escape_that_is_none_is_named_where_it_begins(tokens: llguidance.LLTokenizer, before: str, bad: str) -> None:
    sent = before + bad
    with pytest.raises(library.GrammarError) as caught:
        library.compile_grammar(tokens, Compile("grammar", sent))
    line = before.count("\n") + 1
    assert str(caught.value).endswith(f" at line {line}, {before[-20:]!r} ^ {bad[:20]!r}")


def test_a_long_chain_of_rules_ends_with_an_answer_or_a_reason(core: EngineCore, tokenizer: Tokenizer) -> None:
    [answer] = run(core, {"a": (PROMPT, params(0, 60, grammar=CHAIN))}).values()
    if answer.error is None:
        assert text_of(answer, tokenizer) == "a"
    else:
        assert (answer.error_param, answer.token_ids) == ("structured_outputs", [])
