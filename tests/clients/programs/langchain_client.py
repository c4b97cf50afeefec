"""LangChain's classes for OpenAI: chat, streams, tools, structured output, log probabilities, completions, responses."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

url, model = sys.argv[1:]
QUESTION, ANSWER = "What is the capital of France?", "The capital of France is Paris."
common = {
    "model": model,
    "base_url": f"{url}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_retries": 0,
    "timeout": 120,
}


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=12)
    country: str = Field(max_length=12)


chat = ChatOpenAI(**common, max_tokens=40, stream_usage=True)
answer = chat.invoke(QUESTION)
assert answer.content == ANSWER, answer
assert answer.usage_metadata["output_tokens"] == 8, answer.usage_metadata
assert answer.response_metadata["finish_reason"] == "stop"

total = None
for chunk in chat.stream(QUESTION):
    assert isinstance(chunk, AIMessageChunk)
    total = chunk if total is None else total + chunk
assert total.content == ANSWER and total.usage_metadata["output_tokens"] == 8, total

told = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
assert "".join(one["token"] for one in told) == ANSWER and all(len(one["top_logprobs"]) == 2 for one in told)

forced = ChatOpenAI(**common, max_tokens=100).bind_tools([get_weather], tool_choice="get_weather")
turns = [HumanMessage("What is the weather in Paris?")]
asked = forced.invoke(turns)
[call] = asked.tool_calls
assert call["name"] == "get_weather" and set(call["args"]) == {"city"}, call
total = None
for chunk in forced.stream(turns):
    total = chunk if total is None else total + chunk
assert total.tool_calls[0]["args"] == call["args"], total
turns += [asked, ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])]
assert chat.bind_tools([get_weather]).invoke(turns).response_metadata["finish_reason"] in (
    "stop",
    "length",
    "tool_calls",
)

for method in ("json_schema", "function_calling"):
    city = ChatOpenAI(**common, max_tokens=100).with_structured_output(City, method=method).invoke("Name a city.")
    assert isinstance(city, City), city

assert chat.batch([QUESTION, "Say hello."])[0].content == ANSWER

old = OpenAI(**common, max_tokens=6)
begun = old.invoke("The capital of France is")
assert "Paris" in begun
assert "".join(old.stream("The capital of France is")) == begun
assert [one[0].text for one in old.generate(["The capital of France is"] * 2).generations] == [begun] * 2

answer = ChatOpenAI(**common, max_tokens=40, use_responses_api=True).invoke(QUESTION)
assert answer.text == ANSWER if isinstance(answer.text, str) else answer.text() == ANSWER
