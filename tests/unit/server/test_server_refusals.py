"""What is refused, with which status, and which words: bad values, lengths, keys, sizes, routes."""

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from live_server import Live, ids_of, live_server
from scripted_engine import ScriptedEngine

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def deep(levels: int) -> dict[str, Any]:
    """A schema so deep."""
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels // 2):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("ok")), max_body_size="64Ki") as server:
        yield server


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def allowed(*tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


def nested(depth: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": nested(depth - 2)}} if depth > 0 else {}


async def error_of(live: Live, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    response = await live.http.post(path, content=data, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    return response.status_code, error


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 10**40}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 2.0}, "max_tokens"),
        ({"max_tokens": 10**18}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x" * 1025]}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop_token_ids": [300]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"priority": 5}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"priority": 0.5}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"cache_salt": 7}, "cache_salt"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": None}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content.0"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"logprobs": 5}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"best_of": 3, "n": 2, "stream": True}, "best_of"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
        ({"tools": [tool("f"), tool("f")]}, "tools"),
        ({"tools": [tool(f"f{i}") for i in range(513)]}, "tools"),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [call("f", "x" * 50_000)]}]}, "messages"),
        ({"tools": [tool("f", {"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [tool("f"), tool("g", nested(130))]}, "tools.1.function.parameters"),
        ({"tools": [tool("f", [])]}, "tools.0.function.parameters"),
        ({"tools": [tool("f")], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": allowed()}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": allowed(tool("g"))}, "tool_choice"),
        (
            {"tools": [tool("f")], "tool_choice": allowed(tool("f"), {"type": "mcp"})},
            "tool_choice.allowed_tools.tools.1.function",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool("f")], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        ({"tools": [tool("f")], "guided_regex": "a"}, "guided_regex"),
        ({"tools": [tool("f")], "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages.0.tool_calls.0.function"),
        ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages.0.content"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"allowed_token_ids": "5"}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"whitespace_pattern": " "}}, "structured_outputs.whitespace_pattern"),
        ({"guided_json": "[1"}, "guided_json"),
        ({"guided_choice": ["a", ""]}, "guided_choice"),
        ({"guided_regex": 7}, "guided_regex"),
    ],
)
async def test_a_bad_chat_field_is_a_400_with_its_name(live: Live, fields: dict[str, Any], param: str) -> None:
    status, error = await error_of(live, CHAT, {"messages": MESSAGES, **fields})
    assert (status, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"] or param in error["message"]
    assert live.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [300]}, "prompt"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt": [5, -1]}, "prompt"),
        ({"prompt": [[5], [300]]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"echo": "yes"}, "echo"),
        ({"echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"echo": True, "max_tokens": 0, "stream": True}, "echo"),
        ({"echo": False, "max_tokens": 0}, "max_tokens"),
        ({"echo": True, "max_tokens": -1}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({}, "prompt"),
    ],
)
async def test_a_bad_completion_field_is_a_400_with_its_name(live: Live, fields: dict[str, Any], param: str) -> None:
    body = fields if "prompt" in fields or not fields else {"prompt": "hi", **fields}
    status, error = await error_of(live, COMPLETE, body)
    assert (status, error["param"].partition(".")[0]) == (400, param), error
    assert not error["param"].endswith((".str", ".text")), "a step of pydantic's path, not of the body"
    assert param in error["message"]


@pytest.mark.parametrize(
    ("fields", "param", "shown"),
    [
        ({"logit_bias": {"999999": 1}}, "logit_bias", "999999"),
        ({"logit_bias": {"abc": 1}}, "logit_bias", "abc"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "-1"),
        ({"logit_bias": {"5": 1e9}}, "logit_bias", "1000000000.0"),
        ({"stop_token_ids": [300], "min_tokens": 2}, "stop_token_ids", "300"),
        ({"stop_token_ids": [-1]}, "stop_token_ids", "-1"),
        ({"stop_token_ids": ["abc"]}, "stop_token_ids", "integer"),
        ({"allowed_token_ids": list(range(5000))}, "allowed_token_ids", "300"),
        ({"allowed_token_ids": [5] * 5000}, "allowed_token_ids", "5000"),
        ({"allowed_token_ids": [-7]}, "allowed_token_ids", "-7"),
        ({"prompt": [5, 300]}, "prompt", "300"),
    ],
)
async def test_b043_token_ids_that_the_model_does_not_have(
    live: Live, fields: dict[str, Any], param: str, shown: str
) -> None:
    """The tiny model has 300 outputs, its tokenizer 268 tokens: the model's number is the bound."""
    status, error = await error_of(live, COMPLETE, {"prompt": "hi", "max_tokens": 5, **fields})
    assert (status, error["code"]) == (400, "invalid_value")
    assert error["param"].partition(".")[0] == param
    assert shown in error["message"] and param in error["message"]
    assert live.engine.requests == []
    assert (await live.complete([299], logit_bias={"299": 1}, allowed_token_ids=[299])).status_code == 200


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused(live: Live, constant: str) -> None:
    status, error = await error_of(live, COMPLETE, f'{{"prompt": "hi", "temperature": {constant}}}')
    assert (status, error["param"]) == (400, "temperature")


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b'{"prompt": "\xff"}', b"null", b'{"prompt": "\\ud800"}', b"[" * 5000]
)
async def test_a_body_that_is_no_object_is_a_400(live: Live, data: bytes) -> None:
    status, error = await error_of(live, COMPLETE, data)
    assert status == 400, error
    assert error["code"] == ("invalid_value" if data in (b"[1]", b"null") else "invalid_json")


async def test_more_sequences_than_can_ever_wait_are_no_matter_of_trying_again(live: Live) -> None:
    status, error = await error_of(live, COMPLETE, {"prompt": ["hi"] * 100, "n": 100})
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "n")
    assert "10000" in error["message"]


async def test_lengths_name_both_numbers(live: Live) -> None:
    window = 128
    for length, fields, words, param in [
        (129, {}, ["128", "129"], "prompt"),
        (128, {}, ["128", "no room"], "prompt"),
        (6, {"max_tokens": 124}, ["128", "130", "6 in the prompt", "124 in max_tokens"], "max_tokens"),
    ]:
        status, error = await error_of(live, COMPLETE, {"prompt": [5] * length, **fields})
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
        assert all(word in error["message"] for word in words), error["message"]
    assert (await live.complete([5] * 127)).json()["usage"]["completion_tokens"] == 1
    assert live.engine.requests[-1].params.max_tokens == window - 127
    status, error = await error_of(live, CHAT, {"messages": [{"role": "user", "content": "x" * 200}]})
    assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    status, error = await error_of(live, CHAT, {"messages": MESSAGES, "max_completion_tokens": 128})
    assert error["param"] == "max_completion_tokens"


async def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(live: Live) -> None:
    status, error = await error_of(live, COMPLETE, {"prompt": "x" * 50_000})
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert "50000 characters" in error["message"]


async def test_routes_and_methods(live: Live) -> None:
    missing = await live.http.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert "GET /v1/nothing" in missing.json()["error"]["message"]
    wrong = await live.http.get(CHAT)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_a_413(live: Live, chunked: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(70):
            yield b"x" * 1024

    content: Any = chunks() if chunked else b"x" * 70 * 1024
    response = await live.http.post(COMPLETE, content=content)
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert "--max-body-size" in response.json()["error"]["message"]
    assert response.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (COMPLETE, {"prompt": ["x"] * 129}, "prompt", ["128", "129"]),
        (COMPLETE, {"prompt": "x", "stop": ["x"] * 17}, "stop", ["16", "1024"]),
        (COMPLETE, {"prompt": "x", "stop": ["y" * 1025]}, "stop", ["16", "1024"]),
        (COMPLETE, {"prompt": "x", "guided_choice": ["a"] * 10_001}, "guided_choice", ["10000", "10001"]),
        (CHAT, {"messages": MESSAGES, "guided_json": deep(130)}, "guided_json", ["120"]),
        (CHAT, {"messages": MESSAGES * 129}, "messages", ["128", "129"]),
    ],
)
async def test_a_limit_names_field_value_and_bound(
    live: Live, path: str, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    status, error = await error_of(live, path, fields)
    assert (status, error["param"]) == (400, param)
    assert all(word in error["message"] for word in (param, *words)), error["message"]


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 400), ("br, gzip", 400), ("identity", 200), ("", 200)])
async def test_a_compressed_body_is_refused_by_its_encoding(live: Live, encoding: str, status: int) -> None:
    content = json.dumps({"prompt": "hi"}).encode()
    response = await live.http.post(COMPLETE, content=content, headers={"content-encoding": encoding})
    assert response.status_code == status
    if status == 400:
        error = response.json()["error"]
        assert error["code"] == "unsupported_content" and f"content-encoding '{encoding}'" in error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "x" * 20_000},
        {"tools": [{"type": "x" * 20_000}]},
        {"tools": [tool("x" * 20_000)]},
        {"messages": [{"role": "x" * 20_000, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "x" * 20_000}]}]},
        {"logit_bias": {"x" * 20_000: 1}},
        {"logit_bias": {"x" * 20_000: "x"}},
        {"structured_outputs": {"x" * 20_000: 1}},
        {"priority": 10**4000},
    ],
)
async def test_what_is_shown_of_a_long_value_is_short(live: Live, fields: dict[str, Any]) -> None:
    status, error = await error_of(live, CHAT, {"messages": MESSAGES, **fields})
    assert status in (400, 404) and len(json.dumps(error)) < 1000, error["message"][:200]


async def test_request_ids_go_in_and_out(live: Live) -> None:
    given = await live.http.get("/version", headers={"x-request-id": "abc-123"})
    assert given.headers["x-request-id"] == "abc-123"
    for strange in ["", "a b", "x" * 200]:
        made = (await live.http.get("/v1/nothing", headers={"x-request-id": strange})).headers["x-request-id"]
        assert len(made) == 32


async def test_logs_hold_no_prompt_and_no_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="quire")
    engine = ScriptedEngine(lambda _: ids_of("answer-text"))
    async with live_server(tmp_path, engine, api_key=("secret-key",)) as live:
        live.http.headers["authorization"] = "Bearer secret-key"
        await live.chat("prompt-text", temperature=-1)
        await live.http.post(CHAT + "?q=query-text", json={"messages": [{"role": "user", "content": "prompt-text"}]})
    lines = [record.getMessage() for record in caplog.records if record.name == "quire.access"]
    assert any(
        "POST /v1/chat/completions 200" in line and "ttft=" in line and "completion=12" in line for line in lines
    )
    for word in ("prompt-text", "answer-text", "secret-key", "query-text"):
        assert word not in caplog.text
