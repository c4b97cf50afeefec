"""Forced calls: the grammar of every format, in the real library and through the whole stack."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import llguidance
import pytest
import pytest_asyncio

from live_server import Live, live_server
from quire.config import EngineConfig
from quire.engine.client import EngineClient
from quire.engine.grammar import library
from quire.engine.grammar.protocol import Compile
from quire.outputs.calls.formats import FORMATS
from quire.outputs.calls.grammar import answer_grammar
from quire.outputs.parts import Message
from quire.text import Tokenizer
from tiny_text import TEMPLATE, VOCAB_SIZE

DIGIT = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
FUNCTIONS: dict[str, Any] = {"look": DIGIT, "look-2": DIGIT}
CALLS = {
    "hermes": ['<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>', "\n"],
    "llama3": ['{"name": "look", "parameters": {"a": 1}}', None],
    "mistral-list": ['{"name": "look", "arguments": {"a": 1}}', ", "],
    "mistral": ['[TOOL_CALLS]look[ARGS]{"a": 1}', ""],
    "glm4": ['look\n{"a": 1}', None],
    "glm45": ['<tool_call>look\n{"a": 1}\n</tool_call>', "\n"],
    "qwen3-coder": ['<tool_call>\n<function=look>\n{"a": 1}\n</function>\n</tool_call>', "\n"],
}


@pytest.fixture(scope="module")
def vocabulary(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    return library.vocabulary(tokenizer, VOCAB_SIZE, [2, 0])


def accepts(vocabulary: llguidance.LLTokenizer, tokenizer: Tokenizer, lark: str, text: str) -> bool:
    matcher = library.compile_grammar(vocabulary, Compile("grammar", lark))
    ids = tokenizer.encode(text, add_special_tokens=False)
    return bool(matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting())


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_grammar_of_a_format_is_what_its_parser_reads(
    vocabulary: llguidance.LLTokenizer, tokenizer: Tokenizer, name: str
) -> None:
    found, (call, between) = FORMATS[name], CALLS[name]
    assert call is not None
    other = call.replace("look", "look-2").replace(" 1", "\n  9")

    def ok(text: str, *, parallel: bool = True, bare: bool = False) -> bool:
        lark = answer_grammar(found.spelling, FUNCTIONS, parallel=parallel, special_id=lambda _: None)
        text = text if bare else found.spelling.open + text + found.spelling.close
        return accepts(vocabulary, tokenizer, lark, text)

    for text in (call, other):
        assert ok(text)
        assert not ok(text[:-1])
        assert not ok(text + " ")
    for wrong in (call.replace("1", "x"), call.replace('"a": 1', ""), call.replace("look", "cook"), "", "text"):
        assert not ok(wrong), wrong
    assert not ok(call + call, parallel=False)
    if between is not None:
        assert ok(call + between + other)
        assert not ok(call + between + other, parallel=False)
    parser, message = found.parser(FUNCTIONS), Message()
    message.add(parser.push(found.spelling.open + other + found.spelling.close) + parser.flush())
    assert parser.complete and message.text == ""
    assert (message.calls[0].name, json.loads(message.calls[0].arguments)) == ("look-2", {"a": 9})


def test_special_tokens_thoughts_and_other_answers(vocabulary: llguidance.LLTokenizer, tokenizer: Tokenizer) -> None:
    spelling = FORMATS["mistral"].spelling
    lark = answer_grammar(
        spelling, FUNCTIONS, parallel=True, special_id={"[TOOL_CALLS]": 1}.get, thinks=True, instead={"type": "integer"}
    )
    call = '<|im_start|>look[ARGS]{"a":5}'
    for good in (f"Hm <b></think>\n\n{call}", f"</think>{call}{call}", "x</think>\n12"):
        assert accepts(vocabulary, tokenizer, lark, good), good
    for bad in (call, f"Hm</think>[TOOL_CALLS]{call}", "x</think>y", "12", f"x</think>{call}12"):
        assert not accepts(vocabulary, tokenizer, lark, bad), bad
    only = answer_grammar(None, {}, parallel=True, special_id=lambda _: None, thinks=True, instead=True)
    assert accepts(vocabulary, tokenizer, only, 'a</think>[{"b": null}]')


TERSE = (
    "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{# <tool_call> arguments #}{% endif %}"
    + TEMPLATE
)
TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "d", "parameters": DIGIT}},
    {"type": "function", "function": {"name": "wait"}},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def live(folder: Path) -> AsyncIterator[Live]:
    config = EngineConfig(model=str(folder), dtype="float32", device="cpu", cpu_threads=1, num_blocks=512, max_model_len=512)  # fmt: skip
    engine = await EngineClient.start(config, log_level="warning")
    async with live_server(folder, engine, template=TERSE) as server:  # type: ignore[arg-type]
        server.http.timeout = httpx.Timeout(250)
        yield server


served = pytest.mark.asyncio(loop_scope="module")


@served
@pytest.mark.parametrize("name", [*sorted(FORMATS), "auto"])
async def test_b019_a_model_that_knows_nothing_calls_what_it_must(live: Live, name: str) -> None:
    live.frontend.config = live.frontend.config.model_copy(update={"tool_call_parser": name})
    for fields in (
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}},
    ):
        answer = (await live.chat(tools=TOOLS, seed=3, max_tokens=300, **fields)).json()["choices"][0]
        assert answer["finish_reason"] == "tool_calls", answer
        [call] = answer["message"]["tool_calls"]
        assert answer["message"]["content"] is None
        arguments = json.loads(call["function"]["arguments"])
        if isinstance(fields["tool_choice"], dict):
            assert call["function"]["name"] == "look"
        assert arguments == {} if call["function"]["name"] == "wait" else set(arguments) == {"a"}
        cut = (await live.chat(tools=TOOLS, seed=3, max_tokens=5, **fields)).json()["choices"][0]
        assert cut["finish_reason"] == "length"


@served
async def test_a_schema_that_cannot_be_kept_is_a_400_that_names_tools(live: Live) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"not": {}}}}}}
    refused = await live.chat(tools=[bad], tool_choice="required")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert (await live.chat(tools=[bad], max_tokens=2)).status_code == 200
