"""/v1/messages: blocks and events as Anthropic's client reads them, whole and streamed; what is refused, by name."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from live_server import CALL, THINKING, Live, ids_of, live_server, named_events
from scripted_engine import ScriptedEngine

TOOL = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("hello 🎉"), max_model_len=4096)) as server:
        yield server


async def ask(live: Live, messages: Any = "hi", **fields: Any) -> Any:
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    body = {"model": "tiny", "max_tokens": 500, "messages": turns, **fields}
    return await live.http.post("/v1/messages", json=body, headers={"anthropic-version": "2023-06-01"})


def rebuilt(text: str) -> dict[str, Any]:
    """The message that the events of a stream add up to; checks their order."""
    events = named_events(text)
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    written, opened = "", -1
    for event in events[1:-1]:
        if event["type"] == "message_delta":
            message |= {**event["delta"], "usage": event["usage"]}
            continue
        if event["type"] == "content_block_start":
            opened, written = opened + 1, ""
            message["content"].append(event["content_block"])
        assert event["index"] == opened
        block = message["content"][-1]
        match event.get("delta"):
            case {"type": "text_delta", "text": more}:
                block["text"] += more
            case {"type": "thinking_delta", "thinking": more}:
                block["thinking"] += more
            case {"type": "input_json_delta", "partial_json": more}:
                written += more
        if event["type"] == "content_block_stop" and block["type"] == "tool_use":
            block["input"] = json.loads(written) if written.endswith("}") else {}
    return message


def same(message: dict[str, Any]) -> dict[str, Any]:
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    return {**message, "id": "", "content": content}


async def both(live: Live, messages: Any = "hi", **fields: Any) -> dict[str, Any]:
    """The message, which is the same streamed."""
    response = await ask(live, messages, **fields)
    assert response.status_code == 200, response.text
    whole: dict[str, Any] = response.json()
    assert same(rebuilt((await ask(live, messages, **fields, stream=True)).text)) == same(whole)
    return whole


async def test_text_and_reasons(live: Live) -> None:
    message = await both(live, system="Be brief.")
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    assert message["content"] == [{"type": "text", "text": "hello 🎉"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    length = len(live.engine.requests[-1].prompt_token_ids)
    assert message["usage"] == {
        "input_tokens": length - 1,
        "cache_read_input_tokens": 1,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(ids_of("hello 🎉")) + 1,
    }
    assert live.prompt().startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>")
    assert (await both(live, max_tokens=1))["stop_reason"] == "max_tokens"
    stopped = await both(live, stop_sequences=["lo", "zz"])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "lo")
    assert stopped["content"] == [{"type": "text", "text": "hel"}]
    live.says("")
    assert (await both(live))["content"] == [{"type": "text", "text": ""}]


async def test_tools(live: Live) -> None:
    live.says(f"I look.\n{CALL}\n{CALL}")
    message = await both(live, tools=[TOOL])
    assert message["stop_reason"] == "tool_use"
    said, first, second = message["content"]
    assert said == {"type": "text", "text": "I look.\n"}
    assert (first["type"], first["name"], first["input"]) == ("tool_use", "get_weather", {"city": "Paris"})
    assert first["id"] != second["id"]
    alone: Any = {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}
    for one in ((await ask(live, **alone)).json(), rebuilt((await ask(live, **alone, stream=True)).text)):
        assert [block["type"] for block in one["content"]] == ["text", "tool_use"]
        assert one["stop_reason"] == "tool_use"
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        await ask(live, tools=[TOOL], tool_choice=choice)
        wanted = live.engine.requests[-1].params.structured_outputs
        assert wanted is not None and wanted.kind == "grammar"
    none = await both(live, tools=[TOOL], tool_choice={"type": "none"})
    assert none["content"] == [{"type": "text", "text": f"I look.\n{CALL}\n{CALL}"}]
    live.says(CALL)
    cut = await both(live, tools=[TOOL], max_tokens=len(ids_of(CALL)) - 20)
    assert (cut["stop_reason"], cut["content"][0]["input"]) == ("max_tokens", {})


@pytest.mark.parametrize("value", ["1e999", '"\\ud83d"', '"\\ude00"', "9" * 400])
async def test_arguments_that_json_cannot_carry_are_a_call_that_was_cut(live: Live, value: str) -> None:
    live.says(f'<tool_call>{{"name": "get_weather", "arguments": {{"x": {value}}}}}</tool_call>')
    message = await both(live, tools=[TOOL])
    call, rest = message["content"]
    assert (call["type"], call["input"], rest["type"], message["stop_reason"]) == ("tool_use", {}, "text", "end_turn")


async def test_blocks_become_a_conversation(live: Live) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Rome"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "sunny"}], "is_error": False},
            {"type": "text", "text": "And"}, {"type": "text", "text": "now?"},
        ]},
    ]  # fmt: skip
    response = await ask(
        live, turns, tools=[TOOL], system=[{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]
    )
    assert response.status_code == 200 and "x-quire-ignored-fields" not in response.headers
    assert live.prompt().startswith("<|im_start|>system\nA\nB\n\nYou can call functions.")
    assert (
        '<|im_start|>assistant\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\nAnd\nnow?<|im_end|>"
    ) in live.prompt()
    counted = await live.http.post(
        "/v1/messages/count_tokens", json={"messages": turns, "tools": [TOOL], "system": "A\nB"}
    )
    assert counted.json() == {"input_tokens": len(live.engine.requests[-1].prompt_token_ids)}


async def test_thinking(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: ids_of("Hm.\n</think>\n\nhello"), max_model_len=4096)
    async with live_server(tmp_path, engine, template=THINKING) as live:
        message = await both(live, thinking={"type": "enabled", "budget_tokens": 1024})
        thought, said = message["content"]
        assert thought == {"type": "thinking", "thinking": "Hm.", "signature": ""}
        assert said == {"type": "text", "text": "hello"}
        said_before = {"role": "assistant", "content": message["content"]}
        turns = [{"role": "user", "content": "x"}, said_before, {"role": "user", "content": "y"}]
        response = await ask(live, turns, thinking={"type": "disabled"})
        assert response.json()["content"][0]["type"] == "text"
        assert live.prompt() == "user:x\nassistant:(Hm.)hello\nuser:y\n<think></think>"
        budget = await ask(live, thinking={"type": "enabled", "budget_tokens": 1024})
        assert budget.headers["x-quire-ignored-fields"] == "thinking.budget_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, "messages.0.content.0.tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": 5}]}]}, "messages.0.content.0.content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": "{}"}]}]}, "messages.0.content.0.input"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": " "}]}, "messages.1.content"),
        ({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": []}]}, "messages.1.content"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]}, "messages.0.content"),
        ({"system": [{"type": "image"}]}, "system.0"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"name": "a b"}]}, "tools.0.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
        ({"temperature": -1}, "temperature"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
async def test_what_is_refused_is_named(live: Live, fields: dict[str, Any], param: str) -> None:
    response = await ask(live, **fields)
    content = response.json()
    assert (response.status_code, content["type"]) == (400, "error")
    error = content["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param), error
    assert param.rpartition(".")[2] in error["message"] or param in error["message"]
    assert live.engine.requests == []
    assert content["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize("content", ['{"a', [{"type": "text", "text": '{"a'}]])
async def test_a_last_message_of_the_assistant_is_how_the_answer_begins(live: Live, content: Any) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]
    live.says('": 1}')
    message = await both(live, turns)
    assert message["content"] == [{"type": "text", "text": '": 1}'}], "what goes on, and not what was given"
    assert live.prompt().endswith('<|im_start|>assistant\n{"a')
    counted = await live.http.post("/v1/messages/count_tokens", json={"messages": turns})
    assert counted.json() == {"input_tokens": len(live.engine.requests[-1].prompt_token_ids)}
    chat = {"messages": [turns[0], {"role": "assistant", "content": '{"a'}], "add_generation_prompt": False}
    tokens = await live.http.post("/tokenize", json={"messages": chat["messages"], "continue_final_message": True})
    assert tokens.json()["tokens"] == live.engine.requests[-1].prompt_token_ids
    said = await live.http.post("/v1/chat/completions", json={**chat, "continue_final_message": True})
    assert said.json()["choices"][0]["message"]["content"] == '": 1}'
    assert live.prompt().endswith('<|im_start|>assistant\n{"a')
    await live.http.post("/v1/chat/completions", json=chat)
    assert live.prompt().endswith('<|im_start|>assistant\n{"a<|im_end|>\n')
    nothing = {"messages": [turns[0], {"role": "assistant", "content": " "}], "continue_final_message": True}
    refused = await live.http.post("/v1/chat/completions", json=nothing)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "continue_final_message")


async def test_refusals_at_the_edge_are_in_the_form_of_these_clients(tmp_path: Path) -> None:
    """Of keys, limits, sizes and what nobody foresaw: each before a route is reached, or outside of it."""
    config: dict[str, Any] = {"api_key": ("k",), "requests_per_minute": 4, "max_body_size": "1Ki"}
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("hi")), **config) as live:

        async def told(path: str = "/v1/messages", **fields: Any) -> tuple[int, dict[str, Any]]:
            response = await live.http.post(path, json={"messages": [{"role": "user", "content": "x"}], **fields})
            content = response.json()
            assert (content["type"], content["request_id"]) == ("error", response.headers["x-request-id"])
            return response.status_code, content["error"]

        status, error = await told(max_tokens=5)
        assert (status, error["type"], error["code"]) == (401, "authentication_error", "invalid_api_key")
        assert "x-api-key" in error["message"]
        live.http.headers["x-api-key"] = "k"
        status, error = await told(max_tokens=5, system="x" * 2000)
        assert (status, error["type"], error["code"]) == (413, "request_too_large", "body_too_large")
        live.engine.add = None  # type: ignore[assignment]  # a bug
        status, error = await told(max_tokens=5)
        assert (status, error["type"], error["code"]) == (500, "api_error", "internal_error")
        assert (await told("/v1/messages/nothing"))[0] == 404
        assert (await told("/v1/messages/count_tokens", model="nobody"))[0] == 404
        status, error = await told(max_tokens=5)
        assert (status, error["type"], error["code"]) == (429, "rate_limit_error", "rate_limit_exceeded")
        other = (await live.http.post("/v1/messages_of_others", json={})).json()
        assert (other["error"]["type"], "type" in other) == ("rate_limit_error", False)


async def test_structured_output(live: Live) -> None:
    await ask(live, output_config={"format": {"type": "json_schema", "schema": {"type": "integer"}}, "effort": "low"})
    wanted = live.engine.requests[-1].params.structured_outputs
    assert wanted is not None and (wanted.kind, wanted.param) == ("json", "output_config.format")


async def test_a_failure_in_the_middle_is_an_error_event(live: Live) -> None:
    live.engine.hold()
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with live.http.stream("POST", "/v1/messages", json=body) as response:
        await live.engine.until(lambda: live.engine.requests)
        live.engine.step()
        live.engine.fail(live.engine.requests[0].request_id, "no more")
        text = "".join([part async for part in response.aiter_text()])
    name, data = text.strip().splitlines()[-2:]
    told = json.loads(data.removeprefix("data: "))
    assert (name, told["type"], told["error"]["type"]) == ("event: error", "error", "api_error")
    assert "no more" in told["error"]["message"]


async def test_the_official_client(live: Live) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with anthropic.AsyncAnthropic(base_url=live.url, api_key="none", max_retries=0) as api:
        turns: list[Any] = [{"role": "user", "content": "Weather?"}]
        asked: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "messages": turns, "tools": [TOOL]}
        live.says(f"I look.\n{CALL}")
        async with api.messages.stream(**asked) as stream:
            assert "".join([text async for text in stream.text_stream]) == "I look.\n"
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use"
        said, call = message.content
        assert (said.text, call.input) == ("I look.\n", {"city": "Paris"})
        turns += [
            {"role": "assistant", "content": [block.to_dict() for block in message.content]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]},
        ]
        live.says("Sunny.")
        answer = await api.messages.create(**asked)
        assert (answer.content[0].text, answer.stop_reason) == ("Sunny.", "end_turn")
        count = await api.messages.count_tokens(model="tiny", messages=turns, tools=[TOOL])
        assert count.input_tokens == answer.usage.input_tokens + answer.usage.cache_read_input_tokens
        with pytest.raises(anthropic.BadRequestError) as refused:
            await api.messages.create(**{**asked, "max_tokens": 0})
        assert "max_tokens" in str(refused.value)
        with pytest.raises(anthropic.NotFoundError):
            await api.messages.create(**{**asked, "model": "nobody"})
