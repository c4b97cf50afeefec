"""Promise: `kubectl apply` gives a model that answers, through the router, exactly as the same model does offline."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest

from cluster.handle import Cluster
from quire import LLM, SamplingParams
from stack import llmd

NAME = "serving"
QUESTION = "What is the capital of France? Answer in one short sentence."


@pytest.fixture(scope="module")
def served(stack: Cluster, namespace: str) -> str:
    llmd.apply(stack, namespace, llmd.example(NAME))
    llmd.wait_ready(stack, namespace, NAME)
    return NAME


@pytest.fixture
def client(router: str) -> Iterator[openai.OpenAI]:
    direct = openai.DefaultHttpxClient(trust_env=False)  # around this machine's proxies
    with openai.OpenAI(
        base_url=f"{router}/v1", api_key="none", max_retries=0, timeout=60, http_client=direct
    ) as client:
        yield client


def test_the_model_is_listed(served: str, client: openai.OpenAI) -> None:
    assert served in {model.id for model in client.models.list()}


def test_a_streamed_chat_equals_the_offline_greedy_answer(
    stack: Cluster, namespace: str, served: str, client: openai.OpenAI
) -> None:
    stream = client.chat.completions.create(
        model=served, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=48, stream=True
    )
    chunks = [chunk for chunk in stream if chunk.choices]
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert len(pieces) > 5, f"this is no stream: {pieces}"
    assert chunks[-1].choices[0].finish_reason in {"stop", "length"}

    offline = LLM("smollm2", max_model_len=2048, max_num_seqs=8, kv_cache_memory="256Mi")
    [answer] = offline.chat([{"role": "user", "content": QUESTION}], SamplingParams(temperature=0, max_tokens=48))
    assert "".join(pieces) == answer.outputs[0].text
    assert "Paris" in answer.outputs[0].text


def test_a_whole_answer_equals_the_streamed_one(served: str, client: openai.OpenAI) -> None:
    request = {
        "model": served,
        "messages": [{"role": "user", "content": "Count to five."}],
        "temperature": 0,
        "max_tokens": 32,
    }
    whole = client.chat.completions.create(**request).choices[0].message.content  # type: ignore[call-overload]
    stream = client.chat.completions.create(**request, stream=True)  # type: ignore[call-overload]
    assert whole == "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_an_unknown_model_is_a_404_that_names_it(served: str, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no-such-model"):
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "Hi"}])


def test_a_prompt_longer_than_the_model_is_a_400_that_names_both_numbers(router: str, served: str) -> None:
    body = {"model": served, "prompt": [1] * 3000, "max_tokens": 1}
    answer = httpx.post(f"{router}/v1/completions", json=body, timeout=30, trust_env=False)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "3000" in message and "2048" in message


def test_status_and_printed_columns_say_what_runs(stack: Cluster, namespace: str, served: str) -> None:
    status = llmd.get(stack, namespace, served)["status"]
    assert status["phase"] == "Ready"
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["url"].endswith("/v1")
    header, row = stack.kubectl("get", "llmd", served, "-n", namespace).splitlines()[:2]
    assert {"NAME", "READY", "REPLICAS", "REVISION", "AGE"} <= set(header.split())
    assert row.split()[:2] == [served, "True"]
