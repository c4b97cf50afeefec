"""What clients get: shapes, streams, stops, usage, over real HTTP and with the official client."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from live_server import Live, events_of, ids_of, live_server
from quire.engine.seeds import nth_seed
from quire.request import AddRequest
from scripted_engine import ScriptedEngine

HELLO = ids_of("hello world 🎉")


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: HELLO)) as server:
        yield server


def says(live: Live, text: str) -> None:
    live.engine.reply = lambda _: ids_of(text)


async def streamed(response: httpx.Response) -> tuple[str, str, list[Any]]:
    """Joined text of the first choice, its reason, all chunks; checks the form of the stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *payloads, last = events_of(response.text)
    assert last == "[DONE]"
    chunks = [json.loads(payload) for payload in payloads]
    text, reasons = "", []
    for chunk in chunks:
        for choice in chunk["choices"]:
            text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    assert len(reasons) == 1
    return text, reasons[0], chunks


async def test_models(live: Live) -> None:
    listed = (await live.http.get("/v1/models")).json()
    assert [card["id"] for card in listed["data"]] == ["tiny", "alias"]
    card = (await live.http.get("/v1/models/alias")).json()
    assert (card["object"], card["max_model_len"]) == ("model", 128)
    absent = await live.http.get("/v1/models/org/nobody")
    assert (absent.status_code, absent.json()["error"]["code"]) == (404, "model_not_found")


async def test_chat_whole(live: Live) -> None:
    answer = (await live.chat()).json()
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world 🎉", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len(ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": len(HELLO) + 1,
        "total_tokens": prompt + len(HELLO) + 1,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert live.engine.requests[0].params.max_tokens == 128 - prompt


@pytest.mark.parametrize(
    "content", ["hi", [{"type": "text", "text": "hi"}], [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]]
)
async def test_chat_content_is_text_or_text_parts(live: Live, content: Any) -> None:
    await live.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": content}]})
    text = "hi" if len(content) != 2 or content == "hi" else "h\ni"
    assert live.engine.requests[0].prompt_token_ids == ids_of(
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_chat_stream_equals_the_whole_answer(live: Live) -> None:
    whole = (await live.chat()).json()
    response = await live.chat(stream=True, stream_options={"include_usage": True})
    text, reason, chunks = await streamed(response)
    assert (text, reason) == ("hello world 🎉", "stop")
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == whole["usage"]
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    for header, value in {"cache-control": "no-cache, no-transform", "x-accel-buffering": "no"}.items():
        assert response.headers[header] == value


async def test_no_usage_unless_asked_for(live: Live) -> None:
    _, _, chunks = await streamed(await live.chat(stream=True))
    assert not any("usage" in chunk for chunk in chunks)
    refused = await live.chat(stream_options={"include_usage": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


async def test_completions_of_texts_and_ids(live: Live) -> None:
    for prompt, sent in [
        ("hello", [ids_of("hello")]),
        (["hello", "wor"], [ids_of("hello"), ids_of("wor")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [299]], [[5, 6], [299]]),
    ]:
        live.engine.requests.clear()
        answer = (await live.complete(prompt)).json()
        assert [request.prompt_token_ids for request in live.engine.requests] == sent
        assert [choice["text"] for choice in answer["choices"]] == ["hello world 🎉"] * len(sent)
        assert answer["usage"]["prompt_tokens"] == sum(map(len, sent))
    text, reason, _ = await streamed(await live.complete(stream=True))
    assert (text, reason) == ("hello world 🎉", "stop")


async def test_n_choices_have_their_own_text_seed_and_reason(live: Live) -> None:
    replies = {0: "a", 1: "bbbbbbbbb", 2: "cc"}
    live.engine.reply = lambda request: ids_of(replies[int(request.request_id.rpartition("-")[2])])
    answer = (await live.chat(n=3, seed=7, max_tokens=4)).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2]
    assert [c["message"]["content"] for c in answer["choices"]] == ["a", "bbbb", "cc"]
    assert [c["finish_reason"] for c in answer["choices"]] == ["stop", "length", "stop"]
    assert answer["usage"]["completion_tokens"] == 2 + 4 + 3
    assert [request.params.seed for request in live.engine.requests] == [nth_seed(7, i) for i in range(3)]
    assert {request.params.n for request in live.engine.requests} == {1}

    response = await live.chat(n=3, max_tokens=4, stream=True, stream_options={"include_usage": True})
    *payloads, _ = events_of(response.text)
    chunks = [json.loads(payload) for payload in payloads]
    ends = [(c["index"], c["finish_reason"]) for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert sorted(ends) == [(0, "stop"), (1, "length"), (2, "stop")]
    assert chunks[-1]["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("per_step", [1, 3, 50])
@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["UV"], "abc "),
        ("W", "abc UV"),
        (["end", "bc"], "a"),
        (["zzz"], "abc UVW the end"),
        (["ds"], "abc UVW the end"),
    ],
)
async def test_stop_strings_never_leak(live: Live, stop: Any, left: str, per_step: int, stream: bool) -> None:
    says(live, "abc UVW the end")
    live.engine.per_step = per_step
    if stream:
        text, reason, _ = await streamed(await live.complete(stop=stop, stream=True))
    else:
        choice = (await live.complete(stop=stop)).json()["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == (left, "stop")
    if left != "abc UVW the end" and per_step == 1:
        await live.engine.until(lambda: live.engine.aborted)


async def test_end_tokens_and_special_stop_strings(live: Live) -> None:
    live.engine.reply = lambda _: [*ids_of("one"), 0, *ids_of("user: two")]  # <|endoftext|>, of the generation config
    assert (await live.chat()).json()["choices"][0]["message"]["content"] == "one"
    live.engine.reply = lambda _: [*ids_of("one"), 1, *ids_of("two")]
    answer = (await live.chat(stop=["<|im_start|>"])).json()
    assert answer["choices"][0]["message"]["content"] == "one"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (await live.chat(ignore_eos=True, max_tokens=5)).json()["choices"][0]["finish_reason"] == "length"
    assert live.engine.requests[-1].params.stop_token_ids == ()


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 4, 5])
async def test_a_cut_character_is_the_same_streamed_or_not(live: Live, max_tokens: int) -> None:
    says(live, "🎉🎉")
    whole = (await live.complete(max_tokens=max_tokens)).json()
    text, reason, _ = await streamed(await live.complete(max_tokens=max_tokens, stream=True))
    expected = {1: "\ufffd", 2: "\ufffd", 3: "\ufffd", 4: "🎉", 5: "🎉\ufffd"}[max_tokens]
    assert whole["choices"][0]["text"] == text == expected
    assert whole["choices"][0]["finish_reason"] == reason == "length"
    assert whole["usage"]["completion_tokens"] == max_tokens


async def test_parameters_reach_the_engine(live: Live) -> None:
    await live.complete("hi", temperature=0, top_p=0.5, top_k=7, seed=-3, max_tokens=9, stop_token_ids=[9])
    request: AddRequest = live.engine.requests[0]
    params = request.params
    assert (params.temperature, params.top_p, params.top_k, params.seed, params.max_tokens) == (0.0, 0.5, 7, -3, 9)
    assert set(params.stop_token_ids) == {9, 2, 0}
    await live.chat(max_completion_tokens=3, max_tokens=50)
    assert live.engine.requests[1].params.max_tokens == 3


async def test_unknown_fields_are_accepted_and_named(live: Live) -> None:
    response = await live.chat(frobnicate=1, user="me", **{"odd\nname": 2})
    assert response.status_code == 200
    assert response.headers["x-quire-ignored-fields"] == "frobnicate, odd?name"
    assert "x-quire-ignored-fields" not in (await live.chat(user="me", presence_penalty=0, logit_bias={})).headers


async def test_developer_messages_are_system_messages_where_the_template_knows_no_developer(live: Live) -> None:
    await live.http.post("/v1/chat/completions", json={"messages": [{"role": "developer", "content": "x"}]})
    assert live.engine.requests[0].prompt_token_ids[1:7] == ids_of("system")[:6]


async def test_tokenize_and_detokenize(live: Live) -> None:
    text = "hello <|im_start|>"
    tokens = (await live.http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
    assert tokens == {
        "count": len(ids_of(text)),
        "max_model_len": 128,
        "tokens": ids_of(text),
        "token_strs": ["hello", "Ġ", "<|im_start|>"],
    }
    chat = (await live.http.post("/tokenize", json={"messages": [{"role": "user", "content": text}]})).json()
    assert chat["tokens"].count(1) == 2  # what the template wrote; the user's marker is text
    back = (await live.http.post("/detokenize", json={"tokens": tokens["tokens"]})).json()
    assert back == {"prompt": text}
    assert (await live.http.post("/tokenize", json={})).status_code == 400


async def test_the_official_client(live: Live) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["tiny", "alias"]
        answer = await client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
        assert answer.choices[0].message.content == "hello world 🎉"
        parts, usage = [], None
        async for chunk in await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        ):
            usage = chunk.usage or usage
            parts += [choice.delta.content or "" for choice in chunk.choices]
        assert "".join(parts) == "hello world 🎉"
        assert usage is not None and usage.completion_tokens == len(HELLO) + 1
        completion = await client.completions.create(model="alias", prompt=["a", "b"], max_tokens=3)
        assert (completion.model, len(completion.choices)) == ("alias", 2)
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hi"}])
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=-1
            )
        assert bad.value.param == "temperature"


@pytest.mark.parametrize("stream", [False, True])
async def test_priority_and_cache_salt_reach_the_engine(tmp_path: Path, stream: bool) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: HELLO), scheduler_policy="priority") as live:
        await live.chat(priority=-7, cache_salt="tenant", n=2, stream=stream)
        await live.chat(stream=stream)
    assert [(sent.priority, sent.cache_salt) for sent in live.engine.requests] == [(-7, "tenant")] * 2 + [(0, None)]
