"""Calls in the text of answers: every format, every cut of the text, everything that only looks like a call."""

import json
import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from quire.outputs.calls.formats import FORMATS
from quire.outputs.calls.scanner import JsonScanner, NotJsonError
from quire.outputs.parts import Call, CallArguments, CallStart, Message, Part, Reasoning
from quire.outputs.reader import Reader
from quire.outputs.reasoning import ReasoningSplitter, begins_inside
from quire.request import SamplingParams
from quire.structured import MAX_DEPTH
from quire.text.tokenizer import Tokenizer
from quire.text.vocabulary import Vocabulary
from tiny_text import build_tokenizer

FUNCTIONS: dict[str, Any] = {
    "get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "get_time": {"type": "object"},
}


def parts_of(name: str, pieces: list[str], **options: Any) -> tuple[list[Part], bool]:
    parser = FORMATS[name].parser(FUNCTIONS, **options)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.flush()
    return parts, parser.complete


def read(name: str, *pieces: str, **options: Any) -> tuple[str, list[tuple[str, str]], bool]:
    """Text, calls and whether all is whole."""
    parts, complete = parts_of(name, list(pieces), **options)
    message = Message()
    message.add(parts)
    return message.text, [(call.name, call.arguments) for call in message.calls], complete


PARIS = '{"city": "Paris"}'
HERMES = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
CALLS = [
    ("hermes", HERMES, "", [("get_weather", PARIS)]),
    ("hermes", f"Let me look.\n{HERMES}", "Let me look.\n", [("get_weather", PARIS)]),
    ("hermes", f"\n\n{HERMES}\n{HERMES}\n", "", [("get_weather", PARIS)] * 2),
    ("hermes", f"{HERMES}\n Both. {HERMES}", "\n Both. ", [("get_weather", PARIS)] * 2),
    ("hermes", f'<tool_call>{{"arguments": {PARIS}, "name": "get_weather"}}</tool_call>', "", [("get_weather", PARIS)]),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": null}', "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"id": [1, {"a": "}"}], "x": -1e5, "name": "get_time", "arguments": {}, "y": "z"}',
     "", [("get_time", "{}")]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": [1]}"}', "", [("get_time", '{"a": [1]}')]),
    ("hermes", f"{HERMES} and more", " and more", [("get_weather", PARIS)]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": "</tool_call>\\"} é🎉 \\\\", "b": {"c": []}}}</tool_call>',
     "", [("get_time", '{"a": "</tool_call>\\"} é🎉 \\\\", "b": {"c": []}}')]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": "two\nlines\t"}}', "",
     [("get_time", '{"a": "two\\nlines\\t"}')]),
    ("llama3", f'{{"name": "get_weather", "parameters": {PARIS}}}', "", [("get_weather", PARIS)]),
    ("llama3", f'\n {{"type": "function", "name": "get_weather", "parameters": {PARIS}}}\n', "", [("get_weather", PARIS)]),
    ("llama3", f'<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}; {{"name": "get_time", "parameters": {{}}}}', "",
     [("get_weather", PARIS), ("get_time", "{}")]),
    ("llama3", f'Well.<|python_tag|>{{"name": "get_weather", "parameters": {PARIS}}}', "Well.", [("get_weather", PARIS)]),
    ("mistral-list", f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {PARIS}}}, {{"name": "get_time", "arguments": {{}}, "id": "a"}}]',
     "", [("get_weather", PARIS), ("get_time", "{}")]),
    ("mistral-list", f'Sure. [TOOL_CALLS] [ {{"name": "get_weather", "arguments": {PARIS}}} ]\nSo', "Sure. \nSo", [("get_weather", PARIS)]),
    ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]get_time{{}}", "", [("get_weather", PARIS), ("get_time", "{}")]),
    ("mistral", f"[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{PARIS}", "", [("get_weather", PARIS)]),
    ("glm4", f"get_weather\n{PARIS}", "", [("get_weather", PARIS)]),
    ("glm4", f"\nget_weather \n{PARIS}\nget_time\n{{}}", "", [("get_weather", PARIS), ("get_time", "{}")]),
    ("glm45", ("<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Sã\"o\n<b></arg_value>\n<arg_key>days</arg_key>"
     "<arg_value> 3</arg_value>\n</tool_call>"), "", [("get_weather", '{"city": "Sã\\"o\\n<b>", "days": 3}')]),
    ("glm45", "<tool_call>get_time</tool_call>\n<tool_call>get_time\n<arg_key>a</arg_key><arg_value>[x</arg_value></tool_call>", "",
     [("get_time", "{}"), ("get_time", '{"a": "[x"}')]),
    ("qwen3-coder", ("<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n\nis</parameter>\n<parameter=days>\n 2\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call><function=get_time></function></tool_call>"), "",
     [("get_weather", '{"city": "Paris\\n\\nis", "days": 2}'), ("get_time", "{}")]),
    ("qwen3-coder", ("So.\n<tool_call>\n<function=get_time>\n<parameter=a>True</parameter><parameter=b>[1, {}]</parameter>"
     "<parameter=c>\n\n</parameter></function>"), "So.\n", [("get_time", '{"a": true, "b": [1, {}], "c": ""}')]),
    ("qwen3-coder", f"<tool_call>\n<function=get_weather>\n{PARIS}\n</function>\n</tool_call>", "", [("get_weather", PARIS)]),
    ("glm45", f"Hm.<tool_call>get_weather\n{PARIS}\n</tool_call>", "Hm.", [("get_weather", PARIS)]),
]  # fmt: skip
NO_CALLS = [
    ("hermes", "Hello, world! <b> <tool"),
    ("hermes", " \n "),
    ("hermes", '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
    ("hermes", '<tool_call>{"arguments": {}}</tool_call> <tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": [1]}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "[1]"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "\\ud800"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": 1e999}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": "{\\"a\\": \\"\\\\ud83d\\"}"}</tool_call>'),
    ("hermes", '<tool_call>{"name": get_time}</tool_call>'),
    ("hermes", '<tool_call>{"name": "get_wea'),
    ("hermes", '{"name": "get_time", "arguments": {}}'),
    ("llama3", 'Use {"name": "get_time", "parameters": {}}'),
    ("llama3", '{"temperature": 5, "name": "sun"} is JSON'),
    ("llama3", "<|python_tag|>print(1)"),
    ("llama3", "{"),
    ("mistral-list", "[TOOL_CALLS][]"),
    ("mistral", "[TOOL_CALLS]get_wonders[ARGS]{}"),
    ("mistral", "[TOOL_CALLS]get_time[OTHER]{}"),
    ("glm4", "get_weather is a function\n{}"),
    ("glm4", "The answer\n{}"),
    ("glm45", "<tool_call>get_tomatoes</tool_call>"),
    ("glm45", "<arg_key>a</arg_key> <tool_call>get_ti"),
    ("qwen3-coder", "<tool_call>\n<function=get_lost>\n</function>\n</tool_call>"),
    ("qwen3-coder", "<function=get_time></function>"),
]
CUT = [
    ("hermes", HERMES[: HERMES.index("ris")], "", [("get_weather", '{"city": "Pa')]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": tru}} </tool_call> x', "}} </tool_call> x",
     [("get_time", '{"a": tru')]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a" 5}}<tool', "5}}<tool", [("get_time", '{"a" ')]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": -1e999}}', "}}", [("get_time", '{"a": -1e999')]),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": {"a": "\\ud83d"}}', '"}}', [("get_time", '{"a": "\\ud83d')]),
    ("mistral", '[TOOL_CALLS]get_time[ARGS]{"a": "\\ude00"}', '0"}', [("get_time", '{"a": "\\ude0')]),
    ("glm45", "<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>Par", "", [("get_weather", '{"city": "Par')]),
    ("mistral", '[TOOL_CALLS]get_time[ARGS]{"a', "", [("get_time", '{"a')]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said", "calls"), CALLS)
def test_calls_of_every_format(name: str, text: str, said: str, calls: list[tuple[str, str]]) -> None:
    assert read(name, text) == (said, calls, True)
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


@pytest.mark.parametrize(("name", "text"), NO_CALLS)
def test_what_is_no_call_of_a_known_function_is_text_to_the_last_character(name: str, text: str) -> None:
    assert read(name, text) == (text, [], False)


@pytest.mark.parametrize(("name", "text", "said", "calls"), CUT)
def test_a_call_that_does_not_go_on_as_json_stays_unfinished(
    name: str, text: str, said: str, calls: list[tuple[str, str]]
) -> None:
    assert read(name, text) == (said, calls, False)


@pytest.mark.parametrize(("name", "text"), [case[:2] for case in [*CALLS, *NO_CALLS, *CUT]])
def test_b017_every_cut_into_two_and_single_characters(name: str, text: str) -> None:
    whole = read(name, text)
    assert read(name, *text) == whole
    for at in range(len(text)):
        assert read(name, text[:at], text[at:]) == whole, at


ALPHABET = [
    "<tool_call>", "</tool_call>", "\n", " ", '{"name": "get_time", "arguments": {', '{"name": "get_weather", "parameters": ',
    '"a": ', '"', "\\", "}", "}}", "{", "[", "]", ",", ":", "1", "true", "é🎉", "[TOOL_CALLS]", "[ARGS]", "get_time", "get_weather\n", ";",
    "<|python_tag|>", "<arg_key>", "city", "</arg_key>", "<arg_value>", "</arg_value>", "<think>",
    "<function=", ">", "</function>", "<parameter=", "</parameter>", "</think>", "text", "\\u00e9", "nul",
]  # fmt: skip


@given(
    name=st.sampled_from(sorted(FORMATS)),
    words=st.lists(st.sampled_from(ALPHABET), max_size=25),
    seed=st.integers(0, 1000),
    inside=st.sampled_from([None, False, True]),
)
def test_any_cut_of_any_text_gives_the_same_parts(name: str, words: list[str], seed: int, inside: bool | None) -> None:
    text, draw = "".join(words), random.Random(seed)
    edges = sorted(draw.choices(range(len(text) + 1), k=draw.randrange(8)))
    pieces = [text[left:right] for left, right in zip([0, *edges], [*edges, len(text)], strict=True)]

    def told(pieces: list[str]) -> tuple[Message, bool]:
        splitter = None if inside is None else ReasoningSplitter(inside=inside)
        reader, message = Reader(splitter, FORMATS[name].parser(FUNCTIONS)), Message()
        for piece in pieces:
            message.add(reader.push(piece))
        message.add(reader.push("", final=True))
        message.calls = [Call("", call.name, call.arguments) for call in message.calls]
        return message, reader.called

    message, called = told(pieces)
    assert (message, called) == told([text])
    if called:
        for call in message.calls:
            assert isinstance(json.loads(call.arguments), dict)
    if not message.calls and inside is None:
        assert message.text == text


@given(value=st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                          lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)),
       indent=st.sampled_from([None, 2]), ascii_only=st.booleans())  # fmt: skip
def test_any_json_comes_through_as_it_is(value: Any, indent: int | None, ascii_only: bool) -> None:
    arguments = json.dumps({"value": value}, indent=indent, ensure_ascii=ascii_only)
    text = f'<tool_call>\n{{"name": "get_time", "arguments": {arguments}}}\n</tool_call>'
    assert read("hermes", *text) == ("", [("get_time", arguments)], True)
    assert read("mistral", f"[TOOL_CALLS]get_time[ARGS]{arguments}") == ("", [("get_time", arguments)], True)


@given(st.text(alphabet='{}[]",:\\ u0e9-+.tfn1rueals\n', max_size=12))
@example('["\\ud83d\\uDE00\\ud83d\\uDE00"]')
@example('["\\ud83d"]')
@example('["\\ude00"]')
@example('["\\ud83dx\\ude00"]')
@example('["\\ud83d\\n"]')
@example('["\\ud83d\\u0041"]')
@example('["\\ud83d\\ud83d"]')
@example("[1e308, -1e308]")
@example("[-1e309]")
def test_the_scanner_takes_what_json_takes(text: str) -> None:
    scanner, ended = JsonScanner(), None
    try:
        for at, char in enumerate(text):
            assert not scanner.done or ended is not None
            if ended is None:
                scanner.feed(char)
                ended = at if scanner.done else None
        taken = ended == len(text) - 1
    except NotJsonError:
        taken = False
    try:
        value = json.loads(text, strict=False)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        expected = isinstance(value, (dict, list)) and text[0] in "{[" and text[-1] in "}]"
    except (ValueError, IndexError):
        expected = False
    assert taken == expected


def test_depth_has_a_bound() -> None:
    def call(depth: int) -> str:
        return f'<tool_call>{{"name": "get_time", "arguments": {{"a": {"[" * depth}{"]" * depth}}}}}</tool_call>'

    assert read("hermes", call(MAX_DEPTH - 1))[2]
    assert not read("hermes", call(MAX_DEPTH))[2]


def test_ids_and_indices() -> None:
    parts, _ = parts_of("hermes", [HERMES, HERMES])
    starts = [part for part in parts if isinstance(part, CallStart)]
    assert [start.index for start in starts] == [0, 1]
    assert len({start.id for start in starts}) == 2
    assert all(start.id.startswith("call_") for start in starts)
    assert [part.index for part in parts if isinstance(part, CallArguments)] == [0, 1]
    parts, _ = parts_of("mistral", ["[TOOL_CALLS]get_time[ARGS]{}"])
    assert isinstance(parts[0], CallStart) and parts[0].id.isalnum() and len(parts[0].id) == 9


def test_arguments_are_streamed_as_they_come() -> None:
    parser = FORMATS["hermes"].parser(FUNCTIONS)
    assert parser.push('<tool_call>\n{"name": "get_weather"') == []
    start, first = parser.push(', "arguments": {"ci')
    assert isinstance(start, CallStart) and (start.name, first) == ("get_weather", CallArguments(0, '{"ci'))
    assert parser.push("ty") == [CallArguments(0, "ty")]
    assert parser.push('": 1}') == [CallArguments(0, '": 1}')]
    assert not parser.complete
    assert parser.push("}") == [] and parser.complete


DEFS = {
    "City": {"type": "string"},
    "Town/~": {"$ref": "#/$defs/City"},
    "Maybe": {"anyOf": [{"$ref": "#/$defs/City"}, {"type": "null"}]},
    "Number": {"type": "integer"},
    "Loop": {"$ref": "#/$defs/Loop"},
    "Wide": {"anyOf": [{"$ref": "#/$defs/Wide"}] * 50},
}


def _tagged(schema: Any, value: str) -> list[str]:
    """The arguments that both formats with tags have for one value."""
    functions = {"f": {"type": "object", "properties": {"a": schema}, "$defs": DEFS}}
    found = []
    for name, text in (
        ("glm45", f"<tool_call>f\n<arg_key>a</arg_key><arg_value>{value}</arg_value></tool_call>"),
        ("qwen3-coder", f"<tool_call><function=f><parameter=a>\n{value}\n</parameter></function></tool_call>"),
    ):
        for pieces in ([text], list(text)):
            parser, message = FORMATS[name].parser(functions), Message()
            message.add([part for piece in pieces for part in parser.push(piece)] + parser.flush())
            assert parser.complete
            found.append(message.calls[0].arguments)
    return found


NULLABLE = [
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"type": "null"}, {"type": "string", "minLength": 1}]},
    {"type": ["string", "null"]},
    {"enum": ["a", "b", None]},
    {"$ref": "#/$defs/Maybe"},
    {"anyOf": [{"$ref": "#/$defs/Town~1~0"}, {"const": None}]},
]
TEXTS = [
    {"enum": ["a", "b"]},
    {"type": "string"},
    {"const": "a"},
    {"$ref": "#/$defs/City"},
    {"$ref": "#/%24defs/Town~1~0"},
    {"allOf": [{"$ref": "#/$defs/City"}, {"minLength": 1}], "default": "x"},
]


@pytest.mark.parametrize("schema", [*NULLABLE, *TEXTS])
def test_values_between_tags_that_may_be_texts_stay_texts(schema: Any) -> None:
    for value in ("3", "true", "[1]", "nullx", "Non", '"a"', ""):
        assert [json.loads(one) for one in _tagged(schema, value)] == [{"a": value}] * 4
    for value in ("null", "None"):
        wanted = {"a": None if schema in NULLABLE else value}
        assert [json.loads(one) for one in _tagged(schema, value)] == [wanted] * 4


@pytest.mark.parametrize(
    "schema",
    [
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {}]},
        {},
        True,
        {"enum": ["a", 3]},
        {"$ref": "#/$defs/Number"},
        {"$ref": "#/$defs/Loop"},
        {"$ref": "#/$defs/Wide"},
        {"$ref": "#/$defs/Nobody"},
        {"$ref": "https://elsewhere/schema"},
        {"$ref": "#/$defs/City/type/x"},
        {"allOf": [{}]},
    ],
)
def test_values_between_tags_that_may_be_more_are_json_where_they_can_be_sent(schema: Any) -> None:
    assert [json.loads(one) for one in _tagged(schema, "3")] == [{"a": 3}] * 4
    for value in ("1e999", '"\\ud83d"', "NaN", "1, 2", "[" * 500 + "]" * 500):
        assert [json.loads(one) for one in _tagged(schema, value)] == [{"a": value}] * 4


def test_marks_of_mistral_that_are_special_tokens_are_seen() -> None:
    backend, marks = build_tokenizer(), ["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"]
    backend.add_special_tokens(marks)
    special = frozenset(backend.token_to_id(mark) for mark in marks)
    tokenizer = Tokenizer(Vocabulary(backend=backend, name="marked", special_ids=special, eos_ids=()))
    ids = backend.encode(f"[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{PARIS}", add_special_tokens=False).ids
    assert special < set(ids)
    shown = [tokenizer.special_id(mark) for mark in FORMATS["mistral"].spelling.specials]
    stream = tokenizer.stream(SamplingParams(), visible=frozenset(one for one in shown if one is not None))
    pieces = [stream.push([token]) for token in ids] + [stream.push([], final=True)]
    assert read("mistral", *pieces) == ("", [("get_weather", PARIS)], True)


def test_one_call_only() -> None:
    assert read("hermes", HERMES + HERMES + " text", one_call=True) == ("", [("get_weather", PARIS)], True)


@pytest.mark.parametrize(
    ("inside", "text", "thought", "said"),
    [
        (False, "<think>\nHm, <b>.\n\n</think>\n\nYes.", "Hm, <b>.", "Yes."),
        (False, "\n<think>a</think>", "a", ""),
        (False, "<think></think>Yes</think>", "", "Yes</think>"),
        (False, "Yes <think>no</think>", "", "Yes <think>no</think>"),
        (False, " <thi", "", " <thi"),
        (False, "<think>cut </thi", "cut </thi", ""),
        (True, "\nHm.\n</think>\n\n Yes.", "Hm.", " Yes."),
        (True, "<think>\nHm.</think>Yes. <think>", "Hm.", "Yes. <think>"),
        (True, "all of it \n", "all of it", ""),
        (True, " \n", "", ""),
    ],
)
def test_reasoning(inside: bool, text: str, thought: str, said: str) -> None:
    for pieces in [[text], list(text), *([text[:at], text[at:]] for at in range(len(text)))]:
        splitter, message = ReasoningSplitter(inside=inside), Message()
        for piece in pieces:
            message.add(splitter.push(piece))
        message.add(splitter.flush())
        assert (message.reasoning, message.text) == (thought, said)


def test_reasoning_comes_before_calls_and_holds_none() -> None:
    reader = Reader(ReasoningSplitter(inside=True), FORMATS["hermes"].parser(FUNCTIONS))
    parts = reader.push(f"I might {HERMES}</think>\n\n{HERMES}", final=True)
    assert isinstance(parts[0], Reasoning) and HERMES in parts[0].text
    assert [type(part) for part in parts[1:]] == [CallStart, CallArguments]


@pytest.mark.parametrize(
    ("end", "template", "parser", "expected"),
    [
        ("assistant\n<think>\n", "<think>", "auto", True),
        ("assistant\n", "... </think> ...", "auto", False),
        ("assistant\n<think>\n\n</think>\n\n", "<think>", "auto", None),
        ("assistant\n", "no such word", "auto", None),
        ("assistant\n<think>\n", "<think>", "none", None),
        ("assistant\n", "no such word", "qwen3", False),
        ("assistant\n", "no such word", "deepseek", True),
        ("assistant\n<think>\n\n</think>\n\n", "", "deepseek", None),
    ],
)
def test_where_reasoning_begins(end: str, template: str, parser: str, expected: bool | None) -> None:
    assert begins_inside(end, template, parser) is expected
