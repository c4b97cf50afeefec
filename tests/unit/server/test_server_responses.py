"""/v1/responses: items and events as OpenAI's client reads them, whole and streamed; what is refused, by name."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from live_server import CALL, THINKING, Live, events_of, ids_of, live_server, named_events
from scripted_engine import ScriptedEngine

FUNCTION = {
    "type": "function",
    "name": "get_weather",
    "description": "d",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of("hello 🎉"), max_model_len=4096)) as server:
        yield server


def client(live: Live) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


async def ask(live: Live, **fields: Any) -> Any:
    return await live.http.post("/v1/responses", json={"input": "hi", **fields})


_OWN = ("id", "call_id", "created_at", "reasoning_tokens")


def same(value: Any) -> Any:
    """Without ids and times, which differ from one answer to the next, and a count that depends on what came together."""
    if isinstance(value, dict):
        return {key: same(inner) for key, inner in value.items() if key not in _OWN}
    return [same(inner) for inner in value] if isinstance(value, list) else value


async def both(live: Live, **fields: Any) -> tuple[Any, list[Any]]:
    """The response, which is the same streamed, and the events."""
    whole = (await ask(live, **fields)).json()
    text = (await ask(live, **fields, stream=True)).text
    events = named_events(text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert same(events[-1]["response"]) == same(whole)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]
    assert events[0]["response"]["output"] == [] and events[0]["response"]["status"] == "in_progress"
    return whole, events


async def test_text(live: Live) -> None:
    response, events = await both(live, instructions="Be brief.", max_output_tokens=50, metadata={"a": "b"})
    assert (response["object"], response["status"], response["model"]) == ("response", "completed", "tiny")
    [message] = response["output"]
    assert message["content"] == [{"type": "output_text", "text": "hello 🎉", "annotations": [], "logprobs": []}]
    assert response["usage"]["output_tokens"] == len(ids_of("hello 🎉")) + 1
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": 1}
    assert (response["instructions"], response["metadata"], response["store"]) == ("Be brief.", {"a": "b"}, False)
    assert live.prompt().startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>")
    assert live.engine.requests[-1].params.max_tokens == 50
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "hello 🎉"
    response, events = await both(live, max_output_tokens=1)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert events[-1]["type"] == "response.incomplete"
    live.says("")
    response, _ = await both(live)
    assert response["output"][0]["content"][0]["text"] == ""


async def test_calls_and_text(live: Live) -> None:
    live.says(f"I look.\n{CALL}\n{CALL}")
    response, events = await both(live, tools=[FUNCTION])
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
    call = response["output"][1]
    assert (call["name"], call["arguments"], call["status"]) == ("get_weather", '{"city": "Paris"}', "completed")
    assert call["call_id"] != response["output"][2]["call_id"]
    assert response["tools"] == [FUNCTION] and response["tool_choice"] == "auto"
    deltas = [event for event in events if event["type"] == "response.function_call_arguments.delta"]
    for index in (1, 2):
        assert "".join(one["delta"] for one in deltas if one["output_index"] == index) == '{"city": "Paris"}'
    live.says(CALL)
    cut, _ = await both(live, tools=[FUNCTION], max_output_tokens=len(ids_of(CALL)) - 20)
    assert (cut["status"], cut["output"][0]["status"]) == ("incomplete", "incomplete")
    live.says('<tool_call>{"name": "get_weather", "arguments": {"city": Paris}}')
    broken, _ = await both(live, tools=[FUNCTION])
    assert [(item["type"], item["status"]) for item in broken["output"]] == [
        ("function_call", "incomplete"),
        ("message", "completed"),
    ]
    assert (broken["output"][0]["arguments"], broken["output"][1]["content"][0]["text"]) == ('{"city": ', "Paris}}")
    for choice in ({"type": "function", "name": "get_weather"}, "required",
                   {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}):  # fmt: skip
        await ask(live, tools=[FUNCTION], tool_choice=choice)
        wanted = live.engine.requests[-1].params.structured_outputs
        assert wanted is not None and wanted.kind == "grammar"


async def test_reasoning(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: ids_of("Hm, hi.\n</think>\n\nhello"))
    async with live_server(tmp_path, engine, template=THINKING) as live:
        response, events = await both(live)
        thought, message = response["output"]
        assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "Hm, hi."}])
        assert message["content"][0]["text"] == "hello"
        told = [event["delta"] for event in events if event["type"] == "response.reasoning_text.delta"]
        assert "".join(told) == "Hm, hi."
        used = response["usage"]
        assert 5 <= used["output_tokens_details"]["reasoning_tokens"] < used["output_tokens"] - 1
        again = await ask(live, input=[{"role": "user", "content": "hi"}, thought, message])
        assert again.status_code == 200
        assert "assistant:(Hm, hi.)hello\n" in live.prompt()


async def test_items_become_a_conversation(live: Live) -> None:
    call = {"type": "function_call", "name": "get_weather", "arguments": '{"city": "Rome"}'}
    items = [
        {"role": "developer", "content": "Rules"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "message", "id": "m", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {**call, "call_id": "1"}, {**call, "call_id": "2", "id": "fc", "status": "completed"},
        {"type": "function_call_output", "call_id": "1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "rain"}]},
    ]  # fmt: skip
    assert (await ask(live, input=items, tools=[FUNCTION])).status_code == 200
    one = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert (
        f"<|im_start|>user\nWeather?<|im_end|>\n<|im_start|>assistant\nI look.\n{one}\n{one}<|im_end|>\n<|im_start|>user\n"
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrain\n</tool_response><|im_end|>"
    ) in live.prompt()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "wizard", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"input": [{"role": "user", "content": None}]}, "input.0.content"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type"),
        ({"input": [{"type": "reasoning", "content": 5}]}, "input.0.content"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"input": [{"type": "function_call", "name": "f", "call_id": "x"}]}, "input.0.arguments"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]}, "tools.0.parameters"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "file_search"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "allowed_tools", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools.0.name",
        ),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"n": 2}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
    ],
)
async def test_what_is_refused_is_named(live: Live, fields: dict[str, Any], param: str) -> None:
    response = await ask(live, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert param.rpartition(".")[2] in error["message"] or param in error["message"]
    assert live.engine.requests == []


async def test_nothing_is_stored(live: Live) -> None:
    for method, path in [("GET", ""), ("DELETE", ""), ("GET", "/input_items")]:
        response = await live.http.request(method, f"/v1/responses/resp_1{path}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
        assert "not stored" in response.json()["error"]["message"]


async def test_what_has_no_effect_is_named_in_the_header(live: Live) -> None:
    include = ["reasoning.encrypted_content", "message.output_text.logprobs"]
    response = await ask(live, include=include, frobnicate=1, user="me", prompt_cache_key="x")
    assert response.headers["x-quire-ignored-fields"] == "frobnicate, include.reasoning.encrypted_content"
    [content] = response.json()["output"][0]["content"]
    assert bytes(byte for entry in content["logprobs"] for byte in entry["bytes"]).decode() == "hello 🎉"


async def test_structured_output_and_effort_reach_the_engine_and_the_template(live: Live) -> None:
    wanted = {"type": "json_schema", "name": "x", "schema": {"type": "integer"}, "strict": True}
    response = (await ask(live, text={"format": wanted}, reasoning={"effort": "low"})).json()
    assert response["text"]["format"] == wanted and response["reasoning"]["effort"] == "low"
    params = live.engine.requests[-1].params
    assert params.structured_outputs is not None
    assert (params.structured_outputs.kind, params.structured_outputs.param) == ("json", "text.format")


async def test_numbers_of_any_size_come_back_in_a_stream(live: Live) -> None:
    wide = {**FUNCTION, "parameters": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**40}}}}
    response, _ = await both(live, tools=[wide])
    assert response["tools"] == [wide]


@pytest.mark.parametrize(
    "fields",
    [
        '"tools": [{"type": "function", "name": "f", "x": 1e999}]',
        '"tools": [{"type": "function", "name": "f", "parameters": {"properties": {"n": {"maximum": 1e999}}}}]',
        '"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f", "x": -1e999}',
        '"text": {"format": {"type": "text", "x": 1e999}}',
        '"text": {"format": {"type": "json_schema", "name": "f", "schema": {"maximum": 1e999}}}',
    ],
)
async def test_what_comes_back_and_is_no_number_of_json_is_null(live: Live, fields: str) -> None:
    data = f'{{"input": "hi", {fields}}}'
    whole = await live.http.post("/v1/responses", content=data)
    assert whole.status_code == 200, whole.text
    assert whole.headers["content-type"] == "application/json" and ":null" in whole.text
    streamed = await live.http.post("/v1/responses", content=data[:-1] + ', "stream": true}')
    last = json.loads(events_of(streamed.text)[-1].partition("!")[2])
    assert same(last["response"]) == same(whole.json())
    half = await live.http.post("/v1/responses", content=data.replace("-1e999", "1e999").replace("1e999", '"\\ud83d"'))
    assert (half.status_code, half.json()["error"]["code"]) == (400, "invalid_json")


async def test_a_failure_in_the_middle_is_an_error_event(live: Live) -> None:
    live.engine.hold()
    async with live.http.stream("POST", "/v1/responses", json={"input": "hi", "stream": True}) as response:
        await live.engine.until(lambda: live.engine.requests)
        live.engine.step()
        live.engine.fail(live.engine.requests[0].request_id, "no more")
        text = "".join([part async for part in response.aiter_text()])
    last = events_of(text)[-1]
    assert last.startswith("error!")
    error = json.loads(last.removeprefix("error!"))
    assert (error["type"], error["code"]) == ("error", "engine_error")
    assert "no more" in error["message"]
    before = [json.loads(one.partition("!")[2])["sequence_number"] for one in events_of(text)[:-1]]
    assert error["sequence_number"] == len(before) == before[-1] + 1


async def test_the_official_client(live: Live) -> None:
    async with client(live) as api:
        response = await api.responses.create(model="tiny", input="hi")
        assert response.output_text == "hello 🎉"
        live.says(CALL)
        tools: Any = [FUNCTION]
        conversation: list[Any] = [{"role": "user", "content": "Weather?"}]
        async with api.responses.stream(model="tiny", input=conversation, tools=tools) as stream:
            kinds = {event.type async for event in stream}
            final = await stream.get_final_response()
        assert {"response.function_call_arguments.delta", "response.completed"} <= kinds
        [call] = final.output
        assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
        conversation += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
        live.says("Sunny.")
        assert (await api.responses.create(model="tiny", input=conversation, tools=tools)).output_text == "Sunny."
        with pytest.raises(openai.BadRequestError) as refused:
            await api.responses.create(model="tiny", input="hi", previous_response_id="resp_1")
        assert refused.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve("resp_1")
