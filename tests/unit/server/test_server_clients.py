"""The official clients of OpenAI and Anthropic against the real server with the embedded model: a process, an engine, real text."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from embedded_server import embedded_server

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city", "parameters": PARAMETERS}
QUESTION = "What is the weather in Paris?"
GREEDY = {"temperature": 0}

pytestmark = [pytest.mark.model, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with embedded_server("--max-model-len=1024", "--kv-cache-memory=256Mi", "--dtype=float32") as server:
        yield server.url


def check(arguments: str) -> None:
    told = json.loads(arguments)
    assert set(told) == {"city", "unit"}
    assert len(told["city"]) <= 12 and told["unit"] in ("celsius", "fahrenheit")


async def test_chat_with_tools(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as api:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        plain: dict[str, Any] = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 120}
        asked: dict[str, Any] = {**plain, "tools": [{"type": "function", "function": FUNCTION}]}
        whole = (await api.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False)).choices[
            0
        ]
        assert whole.finish_reason == "tool_calls" and whole.message.tool_calls is not None
        [call] = whole.message.tool_calls
        check(call.function.arguments)
        async with api.chat.completions.stream(
            **asked, tool_choice={"type": "function", "function": {"name": "get_weather"}}
        ) as stream:
            deltas = [
                event.arguments_delta async for event in stream if event.type == "tool_calls.function.arguments.delta"
            ]
            told = (await stream.get_final_completion()).choices[0]
        assert told.message.tool_calls is not None
        assert told.message.tool_calls[0].function.arguments == call.function.arguments == "".join(deltas)
        assert len(deltas) > 3, "the arguments came as the model wrote them"
        messages += [
            whole.message.to_dict(),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
        ]
        final = (await api.chat.completions.create(**plain)).choices[0]
        assert final.finish_reason in ("stop", "length") and final.message.content
        auto = (await api.chat.completions.create(**asked)).choices[0]
        assert auto.message.content or auto.message.tool_calls


async def test_scoring_as_lm_eval_does(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as api:
        sums = {}
        for end in (" Paris", " Berlin"):
            answer = await api.completions.create(
                model="smollm2",
                prompt="The capital of France is" + end,
                max_tokens=0,
                echo=True,
                logprobs=1,
                temperature=0,
            )
            told = answer.choices[0].logprobs
            assert told is not None and told.tokens is not None and told.token_logprobs is not None
            assert answer.choices[0].text == "".join(told.tokens) == "The capital of France is" + end
            assert told.token_logprobs[0] is None and told.tokens[-1] == end
            sums[end] = told.token_logprobs[-1]
        assert sums[" Paris"] > sums[" Berlin"]


async def test_responses(url: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) as api:
        answer = await api.responses.create(
            model="smollm2", input="What is the capital of France?", temperature=0, max_output_tokens=20
        )
        assert answer.output_text == "The capital of France is Paris."
        tool: Any = {"type": "function", **FUNCTION}
        async with api.responses.stream(
            model="smollm2", input=QUESTION, tools=[tool], tool_choice="required", parallel_tool_calls=False,
            temperature=0, max_output_tokens=120,
        ) as stream:  # fmt: skip
            text = "".join(
                [event.delta async for event in stream if event.type == "response.function_call_arguments.delta"]
            )
            [call] = (await stream.get_final_response()).output
        assert call.type == "function_call" and call.arguments == text
        check(text)
        wanted: Any = {"format": {"type": "json_schema", "name": "w", "schema": PARAMETERS, "strict": True}}
        told = await api.responses.create(
            model="smollm2", input=QUESTION, text=wanted, temperature=0, max_output_tokens=100
        )
        check(told.output_text)


async def test_messages(url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=120) as api:
        france = [{"role": "user", "content": "What is the capital of France?"}]
        answer = await api.messages.create(model="smollm2", max_tokens=20, messages=france, extra_body=GREEDY)
        assert (answer.content[0].text, answer.stop_reason) == ("The capital of France is Paris.", "end_turn")
        turns: list[Any] = [{"role": "user", "content": QUESTION}]
        tool = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": PARAMETERS}
        async with api.messages.stream(
            model="smollm2", max_tokens=120, messages=turns, tools=[tool], extra_body=GREEDY,
            tool_choice={"type": "tool", "name": "get_weather"},
        ) as stream:  # fmt: skip
            message = await stream.get_final_message()
        assert message.stop_reason == "tool_use"
        [call] = message.content
        check(json.dumps(call.input))
        turns += [
            {"role": "assistant", "content": [call.to_dict()]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "Sunny."}]},
        ]
        final = await api.messages.create(model="smollm2", max_tokens=20, messages=turns, tools=[tool])
        assert final.stop_reason in ("end_turn", "max_tokens", "tool_use")
        counted = await api.messages.count_tokens(model="smollm2", messages=turns, tools=[tool])
        assert counted.input_tokens == final.usage.input_tokens + final.usage.cache_read_input_tokens
