"""Talk to a model behind the router, or behind any OpenAI endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx

from stack.progress import StepFailed


def stream_chat(
    base_url: str,
    model: str,
    question: str,
    *,
    max_tokens: int,
    temperature: float = 0.0,
    to_the_end: bool = False,
    patience_s: float = 60.0,
) -> Iterator[str]:
    """Ask one question with streaming; yields pieces of the answer as they come. Raises StepFailed for one that is not whole.

    to_the_end: the answer has max_tokens, and does not end where the model would. patience_s: how long nothing may come.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": max_tokens,
        "temperature": temperature,
        "stream": True,
    }
    if to_the_end:
        body["ignore_eos"] = True
    timeout = httpx.Timeout(patience_s, connect=10.0)
    url = f"{base_url}/v1/chat/completions"
    # trust_env: a proxy of this machine knows nothing of the cluster's addresses.
    with httpx.stream("POST", url, json=body, timeout=timeout, trust_env=False) as response:
        if response.status_code != 200:
            raise StepFailed(
                f"the router answered {response.status_code}: {response.read().decode(errors='replace')[:500]}"
            )
        reason, done = None, False
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            done = done or data == "[DONE]"
            if data == line or data == "[DONE]":
                continue
            event = json.loads(data)
            if "error" in event:
                raise StepFailed(f"the stream ended with an error: {event['error']}")
            for choice in event["choices"]:
                reason = choice.get("finish_reason") or reason
                if piece := choice["delta"].get("content"):
                    yield piece
        if reason is None or not done:
            raise StepFailed(f"the stream is truncated: finish_reason {reason}, {'with' if done else 'without'} [DONE]")
