"""LiteLLM's embedding, and its errors for a model that makes vectors."""

from __future__ import annotations

import math
import sys

import litellm

url, model = sys.argv[1:]
common = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none", "timeout": 120}
texts = ["A cat sits on the mat.", "The stock market fell.", "Kittens like rugs."]
answer = litellm.embedding(**common, input=texts)
cat, market, kittens = (one["embedding"] for one in answer.data)
assert [one["index"] for one in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens > len(texts)
assert math.dist(cat, kittens) < math.dist(cat, market)
try:
    litellm.completion(**common, messages=[{"role": "user", "content": "Hello"}], num_retries=0)
except litellm.BadRequestError as exc:
    assert "embed" in str(exc), exc
else:
    raise AssertionError("a model of vectors answered a chat")
