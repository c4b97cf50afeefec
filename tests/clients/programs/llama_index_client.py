"""LlamaIndex's OpenAILike: chat and completions, whole and streamed, tools, log probabilities."""

from __future__ import annotations

import asyncio
import sys

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url, model = sys.argv[1:]
ANSWER = "The capital of France is Paris."
common = {
    "model": model,
    "api_base": f"{url}/v1",
    "api_key": "none",
    "context_window": 1024,
    "temperature": 0,
    "max_retries": 0,
    "timeout": 120,
}
question = [ChatMessage(role="user", content="What is the capital of France?")]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


chat = OpenAILike(**common, is_chat_model=True, is_function_calling_model=True, max_tokens=40)
assert chat.chat(question).message.content == ANSWER
*_, last = chat.stream_chat(question)
assert last.message.content == ANSWER
assert asyncio.run(chat.achat(question)).message.content == ANSWER

told = OpenAILike(**common, is_chat_model=True, max_tokens=40, logprobs=True, top_logprobs=2).chat(question)
assert "".join(one[0].token for one in told.logprobs) == ANSWER, told.logprobs

tool = FunctionTool.from_defaults(get_weather)
wide = OpenAILike(**common, is_chat_model=True, is_function_calling_model=True, max_tokens=100)
asked = wide.chat_with_tools([tool], user_msg="What is the weather in Paris?", tool_required=True)
[call] = wide.get_tool_calls_from_response(asked)
assert call.tool_name == "get_weather" and set(call.tool_kwargs) == {"city"}, call
*_, last = wide.stream_chat_with_tools([tool], user_msg="What is the weather in Paris?", tool_required=True)
assert wide.get_tool_calls_from_response(last)[0].tool_kwargs == call.tool_kwargs

plain = OpenAILike(**common, is_chat_model=False, max_tokens=6)
begun = plain.complete("The capital of France is").text
assert "Paris" in begun
*_, last = plain.stream_complete("The capital of France is")
assert last.text == begun
