"""Filters of prompts and answers: allow, change, refuse, fail; streamed and not; regular expressions; the adapter for llm-guard."""

from __future__ import annotations

import asyncio
import importlib.metadata
import itertools
import json
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from live_server import Live, events_of, ids_of, live_server
from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.filters import Filter, Refused, WholeAnswer
from quire.filters.regex import RegexFilter
from quire.request import AddRequest
from quire.server.flight.frontend import Frontend
from scripted_engine import ScriptedEngine

RULES = r"""
- {pattern: '\b\d{3}-\d{2}\b', replace: '[number]', longest: 6}
- {pattern: '(?i)bluebird', refuse: this project is not to be talked about}
- {pattern: 'red\sbird', refuse: this project is not to be talked about}
- {pattern: '(?<=say )(\w+)', replace: '<\1>', in: [prompt]}
"""


ASKED = {"role": "user", "content": "x"}
PROPERTY = "tools.0.function.parameters.properties.id.title"


def texts(*parts: str) -> Any:
    return [{"type": "text", "text": part} for part in parts]


def called(text: str, *, call_id: str = "c") -> dict[str, Any]:
    """A call of a tool in the history."""
    return spelled(json.dumps({"a": text}), call_id=call_id)


def spelled(arguments: str, *, call_id: str = "c") -> dict[str, Any]:
    """The same with arguments as they stand."""
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def answered(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "content": "x", "tool_call_id": call_id}


def offered(description: str, **properties: Any) -> dict[str, Any]:
    """A tool."""
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": "f", "description": description, "parameters": schema}}


def rules(folder: Path, text: str = RULES) -> str:
    (folder / "rules.yaml").write_text(text)
    return f"regex={folder / 'rules.yaml'}"


def echo(request: AddRequest) -> list[int]:
    """The prompt's last word and more, so that what the model got is seen in the answer."""
    return [token for token in request.prompt_token_ids if token > 2]


async def said(live: Live, prompt: str, **fields: Any) -> tuple[str, str]:
    """Text and reason, which are the same streamed and not."""
    whole = (await live.complete(prompt, **fields)).json()["choices"][0]
    streamed = await live.complete(prompt, stream=True, **fields)
    chunks = [json.loads(event)["choices"][0] for event in events_of(streamed.text)[:-1]]
    text = "".join(chunk["text"] for chunk in chunks)
    assert (text, chunks[-1]["finish_reason"]) == (whole["text"], whole["finish_reason"])
    return whole["text"], whole["finish_reason"]


async def test_prompts_are_changed_or_refused(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(echo), filter=(rules(tmp_path),)) as live:
        assert (await said(live, "please say hello"))[0] == "please say <hello>"
        ids = ids_of("say 123-45")
        assert (await said(live, ids))[0] == "say [number]", "ids are no way around"
        tokens = (await live.http.post("/tokenize", json={"prompt": "123-45"})).json()["tokens"]
        assert tokens[-8:] == ids_of("[number]")
        for response, param in [
            (await live.complete("a BlueBird flies"), "prompt"),
            (await live.complete(ids_of("Bluebird")), "prompt"),
            (await live.complete(["x", "bluebird"]), "prompt"),
            (await live.chat("bluebird", stream=True), "messages.0.content"),
            (await live.complete("blue\ufdd0bird"), "prompt"),
            (await live.chat("blue\ufdd0b\ufdd1ird"), "messages.0.content"),
            (await live.chat(texts("x", "bluebird")), "messages.0.content"),
            (await live.chat(texts("a red", "bird")), "messages.0.content"),
            (await live.chat(chat_template_kwargs={"a bluebird": 1}), "chat_template_kwargs"),
            (await live.chat(tools=[offered("x", bluebird={})]), "tools.0.function.parameters.properties"),
            (await live.chat(chat_template_kwargs={"a": ["bluebird"]}), "chat_template_kwargs.a.0"),
            (await live.chat(messages=[ASKED, called("bluebird")]), "messages.1.tool_calls.0.function.arguments.a"),
            (
                await live.chat(messages=[ASKED, spelled(r'{"a": "\u0062luebird"}')]),
                "messages.1.tool_calls.0.function.arguments.a",
            ),
            (
                await live.chat(messages=[ASKED, spelled('{"a": "bluebird')]),
                "messages.1.tool_calls.0.function.arguments",
            ),
            (await live.chat(messages=[{**ASKED, "name": "bluebird"}]), "messages.0.name"),
            (await live.chat(messages=[ASKED, answered("a bluebird")]), "messages.1.tool_call_id"),
            (await live.chat(messages=[ASKED, answered("bluebird")]), "messages.1.tool_call_id"),
            (await live.chat(messages=[ASKED, called("x", call_id="Bluebird")]), "messages.1.tool_calls.0.id"),
            (await live.chat(messages=[ASKED, called("x", call_id="call_bluebird")]), "messages.1.tool_calls.0.id"),
            (await live.chat(chat_template_kwargs={"type": "bluebird"}), "chat_template_kwargs.type"),
            (await live.chat(chat_template_kwargs={"role": "bluebird"}), "chat_template_kwargs.role"),
            (await live.chat(tools=[offered("a bluebird")]), "tools.0.function.description"),
            (await live.chat(tools=[offered("x", id={"title": "bluebird"})]), PROPERTY),
        ]:
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, "content_filter", param)
            assert "this project is not to be talked about" in error["message"] and "luebird" not in error["message"]
        for_ids = [ASKED, called("x", call_id="123-45"), answered("123-45")]
        changed = (await live.chat(messages=for_ids)).json()["error"]
        assert (changed["param"], changed["code"]) == ("messages.1.tool_calls.0.id", "content_filter"), "not changed"
        changed = (await live.chat(tools=[offered("x", **{"say no": {}})])).json()["error"]
        assert (changed["param"], changed["code"]) == ("tools.0.function.parameters.properties", "content_filter")
        chat = (await live.chat("say no")).json()
        assert "say <no>" in chat["choices"][0]["message"]["content"]


async def test_ids_that_the_server_made_pass_every_filter(tmp_path: Path) -> None:
    engine = ScriptedEngine(
        lambda _: ids_of('<tool_call>{"name": "f", "arguments": {}}</tool_call>'), max_model_len=4096
    )
    async with live_server(
        tmp_path, engine, filter=(rules(tmp_path, "- {pattern: '[0-9a-f]{6}', refuse: hexadecimal}"),)
    ) as live:
        message = (await live.chat(tools=[offered("x")])).json()["choices"][0]["message"]
        assert message["tool_calls"], message
        turns = [ASKED, message, answered(message["tool_calls"][0]["id"])]
        assert (await live.chat(messages=turns)).status_code == 200
        assert (await live.chat(messages=[ASKED, answered("0a0a0a")])).status_code == 400


async def test_answers_are_changed_or_refused(tmp_path: Path) -> None:
    answers = {
        1: "call 123-45 or 1234-56 now",
        2: "about project BlueBird, which is",
        3: "123-45",
        4: "the end 123-",
    }
    engine = ScriptedEngine(lambda request: ids_of(answers[request.params.top_k]))
    async with live_server(tmp_path, engine, filter=(rules(tmp_path),)) as live:
        assert await said(live, "x", top_k=1) == ("call [number] or 1234-56 now", "stop")
        assert await said(live, "x", top_k=3) == ("[number]", "stop")
        assert await said(live, "x", top_k=4) == ("the end 123-", "stop")
        text, reason = await said(live, "x", top_k=2)
        assert reason == "content_filter" and "lue" not in text and "about project ".startswith(text)
        assert await live.metric('quire_requests_finished_total{finish_reason="content_filter"}') == 2
        assert len(engine.aborted) <= 2 and live.frontend.num_in_flight == 0
        for param in ("logprobs", "prompt_logprobs"):
            refused = await live.complete("x", top_k=1, **{param: 1})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


async def test_a_refused_answer_ends_in_the_engine(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: ids_of("bluebird" + "x" * 90))
    async with live_server(tmp_path, engine, filter=(rules(tmp_path),)) as live:
        engine.hold()
        task = asyncio.create_task(live.complete("x", stream=True))
        await engine.until(lambda: engine.requests)
        for _ in range(80):
            engine.step()
        await engine.until(lambda: engine.aborted)
        assert events_of((await task).text)[-1] == "[DONE]"
        assert engine.aborted == [engine.requests[0].request_id]


class Upper(Filter):
    """What a package might bring."""

    is_slow = True

    def __init__(self, argument: str | None) -> None:
        self.argument = argument

    def prompt(self, text: str) -> str:
        if self.argument == "break":
            raise ZeroDivisionError("secret-text")
        return text.upper()

    def answer(self, prompt: str) -> WholeAnswer:
        class Answer(WholeAnswer):
            def whole(self, text: str) -> str:
                if "Q" in text:
                    raise Refused("no Q")
                return f"{text} to {prompt}"

        return Answer()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = types.ModuleType("a_package")
    module.Upper = Upper  # type: ignore[attr-defined]
    module.nothing = lambda argument: 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_package", module)
    points = [
        importlib.metadata.EntryPoint(name, f"a_package:{what}", "quire.filters")
        for name, what in (("upper", "Upper"), ("nothing", "nothing"), ("gone", "gone"))
    ]
    monkeypatch.setattr("quire.server.flight.filtering.entry_points", lambda group: points)
    yield


async def test_a_filter_of_a_package(tmp_path: Path, plugin: None, caplog: pytest.LogCaptureFixture) -> None:
    async with live_server(tmp_path, ScriptedEngine(echo), filter=("upper", rules(tmp_path))) as live:
        assert (await said(live, "abc"))[0] == "ABC to ABC"
        assert await said(live, "qqq") == ("", "content_filter")
    async with live_server(tmp_path, ScriptedEngine(echo), filter=("upper=break",)) as live:
        failed = await live.chat("x")
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "filter_failed")
        assert "secret-text" not in failed.text and "ZeroDivisionError" in caplog.text
        assert live.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_filter_that_fails_lets_nothing_pass(
    tmp_path: Path, plugin: None, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def answer(self: Upper, prompt: str) -> WholeAnswer:
        raise ValueError

    monkeypatch.setattr(Upper, "answer", answer)
    async with live_server(tmp_path, ScriptedEngine(echo), filter=("upper",)) as live:
        failed = await live.complete("abc", stream=stream)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "filter_failed")
        assert "ABC" not in failed.text and live.frontend.num_in_flight == 0


@pytest.mark.parametrize(
    ("flag", "text", "words"),
    [
        ("absent", "", "no installed package has it as entry point of quire.filters; there are gone, llm-guard, "),
        ("nothing", "", "must give a quire.filters.Filter, got int"),
        ("gone", "", "cannot be loaded"),
        ("regex", "", "needs a file of rules"),
        ("regex=/nowhere", "", "cannot be read"),
        ("regex", "a: 1", "must hold a list of rules, got dict"),
        ("regex", "- {pattern: '(', replace: x}", "rule 1: pattern"),
        ("regex", "- {pattern: a}", "rule 1: exactly one of replace and refuse"),
        ("regex", "- {pattern: a, refuse: x}\n- {pattern: a, replace: '\\2'}", "rule 2: replace: invalid group"),
        ("regex", "- {pattern: a, refuse: x, at: prompt}", "rule 1: at: Extra"),
        ("llm-guard", "", "needs a file of scanners"),
        ("llm-guard", "prompt: [{type: Anonymize}]", "needs a vault"),
        ("llm-guard", "answers: []", "answers: Extra"),
        ("llm-guard", "prompt: [{type: Secrets}]", "needs the package llm-guard"),
    ],
)
def test_a_filter_that_is_none_ends_the_start(tmp_path: Path, plugin: None, flag: str, text: str, words: str) -> None:
    if text:
        (tmp_path / "f.yaml").write_text(text)
        flag += f"={tmp_path / 'f.yaml'}"
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        Frontend(ServeConfig(filter=(flag,)))
    assert "--filter" in str(caught.value)


def pushed(answer: Any, text: str, cuts: list[int]) -> str:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    sent = [answer.push(piece, final=False) for piece in pieces]
    return "".join([*sent, answer.push("", final=True)])


@pytest.fixture(scope="module")
def one_rule(tmp_path_factory: pytest.TempPathFactory) -> RegexFilter:
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(r"- {pattern: '(?<!a)\b1(b{1,3}|c)(?=\W|$)', replace: '[\1]', longest: 5}")
    return RegexFilter(str(file))


@given(text=st.text("1abc ", max_size=60), cuts=st.lists(st.integers(0, 100), max_size=20))
def test_pieces_give_the_same_as_the_whole(one_rule: RegexFilter, text: str, cuts: list[int]) -> None:
    expected = re.sub(r"(?<!a)\b1(b{1,3}|c)(?=\W|$)", r"[\1]", text)
    assert pushed(one_rule.answer(""), text, cuts) == expected == one_rule.prompt(text)


def test_what_is_longer_than_announced_is_not_kept_for_ever(tmp_path: Path) -> None:
    file = rules(tmp_path, "- {pattern: 'y+', replace: '-', longest: 10}").partition("=")[2]
    answer = RegexFilter(file).answer("")
    sent = [answer.push("y", final=False) for _ in range(1000)]
    assert "y" not in "".join(sent)
    assert 80 < len("".join(sent)) < 100, "one for each eleven"


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of llm-guard's interface that is used: two modules with `get_scanner_by_name`, scanners with `scan`."""

    class Input:
        def __init__(self, word: str) -> None:
            self.word = word

        def scan(self, prompt: str) -> tuple[str, bool, float]:
            return prompt.replace(self.word, "***"), self.word not in prompt, 0.0

    class Output:
        def __init__(self, word: str) -> None:
            self.word = word

        def scan(self, prompt: str, output: str) -> tuple[str, bool, float]:
            assert prompt.startswith("x")
            return output.replace(self.word, "***"), self.word not in output, 0.0

    package = types.ModuleType("llm_guard")
    monkeypatch.setitem(sys.modules, "llm_guard", package)
    for kind, scanner in (("input_scanners", Input), ("output_scanners", Output)):
        module = types.ModuleType(f"llm_guard.{kind}")
        module.get_scanner_by_name = lambda name, config, made=scanner: made(**config)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, f"llm_guard.{kind}", module)


async def test_the_adapter_for_llm_guard(tmp_path: Path, guard: None) -> None:
    (tmp_path / "guard.yaml").write_text(
        "prompt: [{type: A, params: {word: bad}}, {type: B, params: {word: soft}, found: change}]\n"
        "answer: [{type: C, params: {word: red}}, {type: D, params: {word: blue}, found: change}]\n"
    )
    async with live_server(tmp_path, ScriptedEngine(echo), filter=(f"llm-guard={tmp_path / 'guard.yaml'}",)) as live:
        assert (await said(live, "x soft blue"))[0] == "x *** ***"
        assert await said(live, "x red") == ("", "content_filter")
        refused = await live.complete("x bad")
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            400,
            "prompt is refused: the scanner A refuses it",
        )
