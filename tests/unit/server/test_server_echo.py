"""`echo`, as scoring tools use it, and /generate."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from live_server import Live, events_of, ids_of, live_server
from scripted_engine import END, ScriptedEngine, logprobs_of

TEXT = "hello 🎉"
PROMPT = "hé wor"


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of(TEXT))) as server:
        yield server


async def first(live: Live, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    response = await live.complete(prompt, echo=True, **fields)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


async def test_the_text_begins_with_the_prompt(live: Live) -> None:
    assert (await first(live))["text"] == PROMPT + TEXT
    assert (await first(live, ids_of(PROMPT)))["text"] == PROMPT + TEXT
    assert (await first(live, [ids_of("<|im_start|>wor")]))["text"] == "<|im_start|>wor" + TEXT
    choices = (await live.complete(["hé", "wor"], echo=True, n=2)).json()["choices"]
    assert [choice["text"] for choice in choices] == ["hé" + TEXT] * 2 + ["wor" + TEXT] * 2
    assert live.engine.requests[-1].params.prompt_logprobs is None, "nothing is computed that nobody asked for"
    assert (await first(live, truncate_prompt_tokens=1))["text"] == " wor" + TEXT
    *payloads, last = events_of((await live.complete(PROMPT, echo=True, stream=True)).text)
    assert last == "[DONE]"
    texts = [choice["text"] for payload in payloads for choice in json.loads(payload)["choices"]]
    assert texts[0] == PROMPT and "".join(texts) == PROMPT + TEXT


async def test_log_probabilities_of_prompt_and_answer(live: Live) -> None:
    told = (await first(live, logprobs=1))["logprobs"]
    prompt, answer = ids_of(PROMPT), ids_of(TEXT)
    assert told["token_logprobs"] == [None, *(-token / 100 for token in [*prompt[1:], *answer, END])]
    assert told["top_logprobs"][0] is None
    assert len(told["top_logprobs"]) == len(told["tokens"]) == len(told["text_offset"]) == len(prompt) + len(answer) + 1
    expected = logprobs_of(prompt[1], 1)
    assert sorted(told["top_logprobs"][1].values()) == sorted(expected.logprobs)
    assert told["tokens"][0] == "h" and told["tokens"][-2].startswith("bytes:")
    assert told["text_offset"][: len(prompt) + 1] == [0, 1, 1, 2, len(PROMPT)]
    plain = (await live.complete(PROMPT, logprobs=1)).json()["choices"][0]["logprobs"]
    for key, values in plain.items():
        shift = [len(PROMPT) + value for value in values] if key == "text_offset" else values
        assert told[key][len(prompt) : -1] == shift
    both = await first(live, logprobs=1, prompt_logprobs=2)
    assert both["logprobs"] == told
    assert [len(entry) for entry in both["prompt_logprobs"][1:]] == [3] * (len(prompt) - 1)
    more = await first(live, logprobs=3, prompt_logprobs=0)
    assert [len(entry) for entry in more["prompt_logprobs"][1:]] == [1] * (len(prompt) - 1)


async def test_every_generated_token_has_an_entry_behind_an_echo(live: Live) -> None:
    """Who scores a text lets one token be generated and cuts one entry off: an end token without one would cost the text its last."""
    live.engine.reply = lambda _: []
    for asked in ({"max_tokens": 1}, {"max_tokens": 1, "n": 2, "seed": 0}):
        answer = (await live.complete(PROMPT, echo=True, logprobs=1, **asked)).json()
        for choice in answer["choices"]:
            told = choice["logprobs"]
            assert choice["finish_reason"] == "stop" and choice["text"] == PROMPT
            assert told["token_logprobs"] == [None, *(-token / 100 for token in [*ids_of(PROMPT)[1:], END])]
            assert (told["tokens"][-1], told["text_offset"][-1]) == ("<|im_end|>", len(PROMPT))
    told = (await first(live, logprobs=1, max_tokens=0))["logprobs"]
    assert len(told["tokens"]) == len(ids_of(PROMPT)), "nothing was generated"


async def test_b026_scoring_takes_a_prompt_of_the_whole_window(live: Live) -> None:
    for length in (3, 127, 128):
        response = await live.complete([5] * length, echo=True, logprobs=0, max_tokens=0)
        assert response.status_code == 200, response.text
        [choice] = response.json()["choices"]
        assert len(choice["logprobs"]["tokens"]) == length
        assert choice["logprobs"]["token_logprobs"] == [None] + [-0.05] * (length - 1)
        assert choice["text"] == live.frontend.tokenizer.decode([5] * length) and choice["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == 0
        assert live.engine.requests[-1].params.max_tokens == 1
    too_long = await live.complete([5] * 129, echo=True, logprobs=0, max_tokens=0)
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    no_room = await live.complete([5] * 128, echo=True, logprobs=0, max_tokens=1)
    assert no_room.json()["error"]["code"] == "context_length_exceeded"
    [choice] = (await live.complete(PROMPT, echo=True, max_tokens=0)).json()["choices"]
    assert (choice["text"], choice["logprobs"]) == (PROMPT, None)


async def test_a_begin_token_that_was_added_has_no_characters(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: ids_of(TEXT))) as live:
        live.frontend.tokenizer.adds_bos = True
        told = (await first(live, logprobs=0))["logprobs"]
    assert told["tokens"][:2] == ["<|im_start|>", "h"]
    assert told["text_offset"][:3] == [0, 0, 1]


async def test_what_lm_eval_asks_with_the_official_client(live: Live) -> None:
    context, continuation = ids_of("hello"), ids_of(" wor")
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.completions.create(
            model="tiny", prompt=[context + continuation], temperature=0, max_tokens=1, logprobs=1, seed=1, echo=True
        )
    told = answer.choices[0].logprobs
    assert told is not None and told.token_logprobs is not None
    assert sum(told.token_logprobs[len(context) : -1]) == pytest.approx(sum(-token / 100 for token in continuation))


async def test_generate(live: Live) -> None:
    whole = (await live.http.post("/generate", json={"prompt": "hi", "n": 2, "seed": 1})).json()
    assert (whole["text"], whole["finish_reason"]) == ([TEXT] * 2, ["stop"] * 2)
    assert whole["usage"]["completion_tokens"] == 2 * (len(ids_of(TEXT)) + 1)
    response = await live.http.post("/generate", json={"prompt": [5, 6], "max_tokens": 3, "stream": True, "huh": 1})
    assert response.headers["x-quire-ignored-fields"] == "huh"
    *payloads, last = events_of(response.text)
    events = [json.loads(payload) for payload in payloads]
    assert last == "[DONE]" and events[-1]["usage"]["completion_tokens"] == 3
    assert [event["finish_reason"] for event in events[:-1]][-1] == "length"
    assert "".join(event["text"] for event in events[:-1]) == live.frontend.tokenizer.decode(ids_of(TEXT)[:3])
    for bad, param in [
        ({}, "prompt"),
        ({"prompt": "x", "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": "x", "n": 0}, "n"),
    ]:
        refused = await live.http.post("/generate", json=bad)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
