"""LiteLLM, by way of its OpenAI, text-completion, responses and Anthropic providers."""

from __future__ import annotations

import json
import sys

import litellm

url, model = sys.argv[1:]
ANSWER = "The capital of France is Paris."
question = [{"role": "user", "content": "What is the capital of France?"}]
common = {
    "api_base": f"{url}/v1",
    "api_key": "none",
    "temperature": 0,
    "max_tokens": 40,
    "num_retries": 0,
    "timeout": 120,
}
anthropic = {**common, "model": f"anthropic/{model}", "api_base": url}
schema = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
tools = [{"type": "function", "function": {"name": "get_weather", "description": "The weather", "parameters": schema}}]
forced = {
    "messages": [{"role": "user", "content": "Weather in Paris?"}],
    "tools": tools,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 100,
}

for way in ({**common, "model": f"openai/{model}"}, anthropic):
    whole = litellm.completion(**way, messages=question)
    assert whole.choices[0].message.content == ANSWER, whole
    assert whole.usage.completion_tokens == 8, whole.usage
    chunks = list(litellm.completion(**way, messages=question, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
    called = litellm.completion(**{**way, **forced}).choices[0]
    assert called.finish_reason == "tool_calls", called
    [call] = called.message.tool_calls
    arguments = call.function.arguments
    assert set(json.loads(arguments)) == {"city"}
    chunks = list(litellm.completion(**{**way, **forced}, stream=True))
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    streamed = "".join(delta.function.arguments or "" for delta in deltas if not delta.index)
    assert json.loads(streamed) == json.loads(arguments), streamed

told = litellm.completion(model=f"openai/{model}", **common, messages=question, logprobs=True, top_logprobs=2)
assert "".join(one.token for one in told.choices[0].logprobs.content) == ANSWER

scoring = {**common, "max_tokens": 1, "echo": True, "logprobs": 1}
scored = litellm.text_completion(model=f"text-completion-openai/{model}", prompt="The capital of France is", **scoring)
assert scored.choices[0].text.startswith("The capital of France is Paris"), scored
response = litellm.responses(
    model=f"openai/{model}",
    input=question[0]["content"],
    api_base=f"{url}/v1",
    api_key="none",
    temperature=0,
    max_output_tokens=20,
)
assert response.output[-1].content[0].text == ANSWER, response

try:
    litellm.completion(**{**common, "model": f"openai/{model}"}, messages=question, top_p=7)
except litellm.BadRequestError as exc:
    assert "top_p" in str(exc)
else:
    raise AssertionError("a bad value was taken")
