"""Log probabilities and best_of in the shapes of the OpenAI API: whole and streamed, with the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from live_server import Live, events_of, ids_of, live_server
from scripted_engine import END, ScriptedEngine

TEXT = "hello 🎉"
IDS = ids_of(TEXT)


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: IDS)) as server:
        yield server


def client(live: Live) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0)


async def test_chat_whole_and_streamed_are_alike(live: Live) -> None:
    async with client(live) as api:
        messages: Any = [{"role": "user", "content": "hi"}]
        whole = await api.chat.completions.create(model="tiny", messages=messages, logprobs=True, top_logprobs=2)
        logprobs = whole.choices[0].logprobs
        assert logprobs is not None and logprobs.content is not None
        assert len(logprobs.content) == len(IDS), "the end token is no part of the text"
        assert bytes(byte for entry in logprobs.content for byte in entry.bytes or []).decode() == TEXT
        assert [entry.logprob for entry in logprobs.content] == [-token / 100 for token in IDS]
        assert [[top.logprob for top in entry.top_logprobs] for entry in logprobs.content] == [[0.0, -0.1]] * len(IDS)
        assert logprobs.content[0].token == "hello"
        stream = await api.chat.completions.create(
            model="tiny", messages=messages, logprobs=True, top_logprobs=2, stream=True
        )
        entries: list[Any] = []
        text = ""
        async for chunk in stream:
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            if choice.logprobs is not None:
                entries += choice.logprobs.content or []
                assert choice.finish_reason is None
        assert (text, entries) == (TEXT, logprobs.content)
        plain = await api.chat.completions.create(model="tiny", messages=messages)
        assert plain.choices[0].logprobs is None


async def test_completions_whole_and_streamed_are_alike(live: Live) -> None:
    async with client(live) as api:
        whole = (await api.completions.create(model="tiny", prompt="hi", logprobs=2)).choices[0].logprobs
        assert whole is not None
        assert whole.tokens == ["hello", " ", "bytes:\\xf0", "bytes:\\x9f", "bytes:\\x8e", "bytes:\\x89"]
        assert whole.token_logprobs == [-token / 100 for token in IDS]
        assert whole.text_offset == [0, 5, 6, 7, 8, 9]
        assert whole.top_logprobs is not None
        assert [len(top) for top in whole.top_logprobs] == [3] * len(IDS)
        stream = await api.completions.create(model="tiny", prompt="hi", logprobs=2, stream=True)
        joined: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "text_offset": [], "top_logprobs": []}
        async for chunk in stream:
            if (own := chunk.choices[0].logprobs) is not None:
                for name, values in joined.items():
                    values += getattr(own, name)
        assert joined == whole.model_dump(include=set(joined))
        assert (await api.completions.create(model="tiny", prompt="hi")).choices[0].logprobs is None


async def test_an_end_token_that_is_part_of_the_text_has_its_entry(live: Live) -> None:
    body = {"include_stop_str_in_output": True, "skip_special_tokens": False, "logprobs": 0}
    choice = (await live.complete(**body)).json()["choices"][0]
    assert choice["text"] == TEXT + "<|im_end|>"
    assert choice["logprobs"]["token_logprobs"][-1] == -END / 100
    assert choice["logprobs"]["tokens"][-1] == "<|im_end|>"


async def test_a_stop_string_ends_the_entries_too(live: Live) -> None:
    live.engine.reply = lambda _: ids_of("abcdef")
    choice = (await live.complete(stop="cd", logprobs=0)).json()["choices"][0]
    assert choice["text"] == "ab"
    assert choice["logprobs"]["tokens"] == ["a", "b", "c", "d"], "up to the token that completed it"


async def test_prompt_logprobs(live: Live) -> None:
    answer = (await live.complete([[5, 6, 7], [8, 9]], prompt_logprobs=1, n=2)).json()
    for choice, prompt in zip(answer["choices"], [[5, 6, 7], [5, 6, 7], [8, 9], [8, 9]], strict=True):
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        assert [list(entry) for entry in rest] == [[str(token), "3"] for token in prompt[1:]]
        assert rest[0][str(prompt[1])] == {
            "logprob": -prompt[1] / 100,
            "rank": 7,
            "decoded_token": live.frontend.tokenizer.pieces.text_of(prompt[1]),
        }
    chat = (await live.chat(prompt_logprobs=0)).json()
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


async def test_best_of_returns_the_likeliest_answers_best_first(live: Live) -> None:
    answers = ["zz", "a", "mmmm", "bb"]  # this engine finds low ids likelier

    def reply(request: Any) -> list[int]:
        return ids_of(answers[int(request.request_id.rpartition("-")[2])])

    live.engine.reply = reply
    answer = (await live.complete(best_of=4, n=2, max_tokens=50)).json()
    assert [(choice["index"], choice["text"]) for choice in answer["choices"]] == [(0, "a"), (1, "bb")]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == sum(map(len, answers)) + 4
    answer = (await live.complete(best_of=4, max_tokens=50, logprobs=1)).json()
    assert [choice["logprobs"]["tokens"] for choice in answer["choices"]] == [["a"]]


@pytest.mark.parametrize(("failing", "status"), [(0, 200), (1, 200), (2, 400)])
async def test_best_of_may_lose_the_answers_that_do_not_come_back(live: Live, failing: int, status: int) -> None:
    live.engine.hold()
    asked = asyncio.create_task(live.complete([[5, 6, 7]], best_of=3, n=2, max_tokens=50, prompt_logprobs=1))
    await live.engine.until(lambda: len(live.engine.requests) == 3)
    for request in live.engine.requests[:failing]:
        live.engine.fail(request.request_id, "structured_outputs: too complex", param="structured_outputs")
    live.engine.release()
    response = await asked
    assert response.status_code == status
    if status == 200:
        choices = response.json()["choices"]
        assert [choice["text"] for choice in choices] == [TEXT] * 2
        assert [[list(one or ()) for one in choice["prompt_logprobs"]] for choice in choices] == [
            [[], ["6", "3"], ["7", "3"]]
        ] * 2, "the answer that told them may be the one that is lost"
        assert response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 1
    else:
        assert response.json()["error"]["param"] == "structured_outputs"
    assert live.frontend.num_in_flight == 0


async def test_minus_infinity_is_a_number_in_json(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripted_engine.logprobs_of", lambda *_: _impossible())
    response = await live.chat(logprobs=True, stream=True)
    entries = [json.loads(one)["choices"][0]["logprobs"] for one in events_of(response.text)[:-1]]
    assert {entry["content"][0]["logprob"] for entry in entries if entry} == {-9999.0}


def _impossible() -> Any:
    from quire.request import TokenLogprobs

    return TokenLogprobs([5], [-float("inf")], 300)
