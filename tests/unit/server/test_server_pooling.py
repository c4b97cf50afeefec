"""/v1/embeddings, /v1/score and /v1/rerank over a scripted engine: fields, forms, refusals, and what surrounds them."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import re
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from live_server import BACKEND, Live, ids_of, live_server
from pooling_kit import FACTS, SCORES, SIZE, embed, embedder, near, post, vector_of
from quire.request import PoolingFacts
from quire.text import Tokenizer, load_tokenizer
from quire_testing.tiny_bert import tokenizer as word_pieces
from scripted_engine import ScriptedEngine
from tiny_text import write_tokenizer


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path, embedder()) as server:
        yield server


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("hello", [ids_of("hello")]),
        (["hello", "world wide"], [ids_of("hello"), ids_of("world wide")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
    ],
)
async def test_all_forms_of_input(live: Live, given: Any, prompts: list[list[int]]) -> None:
    answer = await embed(live, given, user="somebody")
    assert (answer["object"], answer["model"]) == ("list", "tiny")
    assert [one["index"] for one in answer["data"]] == list(range(len(prompts)))
    assert {one["object"] for one in answer["data"]} == {"embedding"}
    assert all(near(one["embedding"], vector_of(ids)) for one, ids in zip(answer["data"], prompts, strict=True))
    tokens = sum(map(len, prompts))
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [request.prompt_token_ids for request in live.engine.requests] == prompts


async def test_base64_holds_the_same_numbers(live: Live) -> None:
    [plain] = (await embed(live, "hello"))["data"]
    [packed] = (await embed(live, "hello", encoding_format="base64"))["data"]
    assert list(struct.unpack(f"<{SIZE}f", base64.b64decode(packed["embedding"]))) == plain["embedding"]


async def test_fewer_dimensions_are_a_unit_vector_again(live: Live) -> None:
    [whole] = (await embed(live, "hello w or"))["data"]
    [cut] = (await embed(live, "hello w or", dimensions=7))["data"]
    length = math.sqrt(sum(number * number for number in whole["embedding"][:7]))
    assert 0 < length < 0.9999, "something was cut off"
    assert near(cut["embedding"], [number / length for number in whole["embedding"][:7]])
    assert (await embed(live, "hello w or", dimensions=SIZE))["data"] == [whole]


async def test_vectors_that_are_not_normalised_stay_so(tmp_path: Path) -> None:
    facts = PoolingFacts(task="embed", size=3, normalised=False)
    async with live_server(tmp_path, ScriptedEngine(pool=lambda _: [3.0, 4.0, 5.0], facts=facts)) as live:
        assert (await embed(live, "a", dimensions=2))["data"][0]["embedding"] == [3.0, 4.0]


async def test_the_official_client(live: Live) -> None:
    async with openai.AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as api:
        answer = await api.embeddings.create(model="tiny", input=["hello", "you"], dimensions=4)
        plain = await api.embeddings.create(model="tiny", input="hello", encoding_format="float", dimensions=4)
    assert near(answer.data[0].embedding, plain.data[0].embedding)
    assert answer.usage.total_tokens == len(ids_of("hello")) + len(ids_of("you"))


@pytest.mark.parametrize(("keep", "kept"), [(4, 4), (-1, 128), (128, 128)])
async def test_truncated_prompts_keep_their_beginning(live: Live, keep: int, kept: int) -> None:
    text = "".join(chr(ord("a") + i % 26) for i in range(300))
    await embed(live, [text, "short"], truncate_prompt_tokens=keep)
    await embed(live, list(range(3, 203)), truncate_prompt_tokens=keep)
    assert [request.prompt_token_ids for request in live.engine.requests] == [
        ids_of(text)[:kept],
        ids_of("short")[:kept],
        list(range(3, 203))[:kept],
    ]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({}, "input", "input is required"),
        ({"input": []}, "input", "input must be a list of 1 to 2048 items, got 0"),
        ({"input": ""}, "input", "input must not be empty"),
        ({"input": ["a", ""]}, "input.1", "input.1 must not be empty"),
        ({"input": [[]]}, "input", "input must not be empty"),
        ({"input": [[1], []]}, "input.1", "input.1 must not be empty"),
        ({"input": [300]}, "input", "token ids in input must be between 0 and 299, got 300"),
        ({"input": ["a", 1]}, "input.1", "input.1"),
        ({"input": 7}, "input", "input"),
        ({"input": None}, "input", "input"),
        ({"input": ["a"] * 2049}, "input", "input must be a list of 1 to 2048 items, got 2049"),
        ({"input": "x" * 129}, "input", "maximum context length is 128 tokens, but input has 129 tokens"),
        ({"input": ["a", [5] * 129]}, "input.1", "input.1"),
        ({"input": [[5], [5] * 129]}, "input.1", "maximum context length is 128 tokens, but input.1 has 129 tokens"),
        ({"input": "x" * 100_000}, "input", "input has 100000 characters, which are at least"),
        ({"input": "a", "dimensions": 0}, "dimensions", "dimensions must be between 1 and 8, the size of"),
        (
            {"input": "a", "dimensions": 9},
            "dimensions",
            "must be between 1 and 8, the size of the model's vectors, got 9",
        ),
        ({"input": "a", "dimensions": True}, "dimensions", "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "encoding_format"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "must be -1 or between 1 and 128"),
        ({"input": "a", "truncate_prompt_tokens": 129}, "truncate_prompt_tokens", "must be -1 or between 1 and 128"),
        ({"input": "a", "priority": 3}, "priority", "has no effect under the scheduler policy fcfs"),
        ({"input": "a", "cache_salt": ""}, "cache_salt", "cache_salt must be a text of 1 to"),
    ],
)
async def test_bad_values_are_named(live: Live, fields: dict[str, Any], param: str, message: str) -> None:
    status, answer = await post(live, "/v1/embeddings", **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]
    assert not live.engine.requests


async def test_unknown_fields_are_named_in_a_header(live: Live) -> None:
    response = await live.http.post("/v1/embeddings", json={"input": "a", "user": "u", "strange": 1})
    assert response.status_code == 200 and response.headers["x-quire-ignored-fields"] == "strange"


async def test_a_model_tells_what_it_can_do_and_refuses_the_rest(live: Live, tmp_path: Path) -> None:
    assert [card["tasks"] for card in (await live.http.get("/v1/models")).json()["data"]] == [["embed", "score"]] * 2
    messages = [{"role": "user", "content": "hi"}]
    for path, body in {
        "/v1/chat/completions": {"messages": messages},
        "/v1/completions": {"prompt": "a"},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": messages, "max_tokens": 5},
        "/generate": {"prompt": "a"},
        "/tokenize": {"messages": messages},
        "/v1/messages/count_tokens": {"messages": messages},
    }.items():
        status, answer = await post(live, path, **body)
        assert (status, answer["error"]["param"]) == (400, "model"), path
        assert answer["error"]["message"] == (
            "the model 'tiny' cannot generate text: it can make embeddings and score texts, at /v1/embeddings, /v1/score, "
            "/v1/rerank"
        )
    for facts, tasks, refused in ((None, ["generate"], 3), (SCORES, ["score"], 1)):
        engine = ScriptedEngine(lambda _: ids_of("ok"), pool=lambda _: [0.5], facts=facts)
        async with live_server(tmp_path, engine) as other:
            assert (await other.http.get("/v1/models/tiny")).json()["tasks"] == tasks
            bodies: list[tuple[str, Any]] = [
                ("/v1/embeddings", {"input": "a"}),
                ("/v1/score", {"text_1": "a", "text_2": "b"}),
                ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ]
            answers = [await post(other, path, **body) for path, body in bodies]
            assert [status for status, _ in answers] == [400] * refused + [200] * (3 - refused)
            assert answers[0][1]["error"]["code"] == "unsupported_task"
    status, answer = await post(live, "/v1/embeddings", model="other", input="a")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("text_1", "text_2", "pairs"),
    [
        ("a", "b", [("a", "b")]),
        ("a", ["b", "a"], [("a", "b"), ("a", "a")]),
        (["a"], ["b", "c"], [("a", "b"), ("a", "c")]),
        (["a", "b"], ["c", "d"], [("a", "c"), ("b", "d")]),
    ],
)
async def test_scores_are_cosines(live: Live, text_1: Any, text_2: Any, pairs: list[tuple[str, str]]) -> None:
    status, answer = await post(live, "/v1/score", text_1=text_1, text_2=text_2)
    assert (status, answer["object"], answer["model"]) == (200, "list", "tiny")
    expected = [
        sum(a * b for a, b in zip(vector_of(ids_of(one)), vector_of(ids_of(other)), strict=True))
        for one, other in pairs
    ]
    assert [(one["index"], one["object"]) for one in answer["data"]] == [(i, "score") for i in range(len(pairs))]
    assert near([one["score"] for one in answer["data"]], expected)
    texts = len([text_1] if isinstance(text_1, str) else text_1) + len([text_2] if isinstance(text_2, str) else text_2)
    assert len(live.engine.requests) == texts, "each text is computed once"


async def test_vectors_of_any_length_are_compared_by_their_angle(tmp_path: Path) -> None:
    facts = PoolingFacts(task="embed", size=2, normalised=False)
    lengths = {97: [2.0, 0.0], 98: [3.0, 3.0], 99: [0.0, 0.0]}
    engine = ScriptedEngine(pool=lambda request: lengths[ord(BACKEND.decode(request.prompt_token_ids))], facts=facts)
    async with live_server(tmp_path, engine) as live:
        _, answer = await post(live, "/v1/score", text_1="a", text_2=["b", "c"])
        assert near([one["score"] for one in answer["data"]], [math.sqrt(0.5), 0.0])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        (
            {"text_1": ["a", "b"], "text_2": ["c"]},
            "text_1",
            "text_1 must be one text or as many as text_2 has, got 2 and 1",
        ),
        ({"text_1": [], "text_2": "c"}, "text_1", "text_1 must be a list of 1 to 2048 items, got 0"),
        ({"text_1": "a", "text_2": []}, "text_2", "text_2 must be a list of 1 to 2048 items, got 0"),
        ({"text_1": "a", "text_2": ["b", ""]}, "text_2.1", "text_2.1 must not be empty"),
        ({"text_1": "a"}, "text_2", "text_2 is required"),
        ({"text_1": "a", "text_2": "x" * 129}, "text_2", "but text_2 has 129 tokens"),
    ],
)
async def test_bad_scores_are_named(live: Live, fields: dict[str, Any], param: str, message: str) -> None:
    status, answer = await post(live, "/v1/score", **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


async def test_rankings(live: Live) -> None:
    documents = ["zebra", {"text": "hello", "title": "t"}, "hello you", "hello"]
    status, answer = await post(live, "/v1/rerank", query="hello", documents=documents)
    assert status == 200
    scores = [one["relevance_score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True) and near(scores[:2], [1.0, 1.0])
    assert [one["index"] for one in answer["results"]][:2] == [1, 3], "the first of equal ones first"
    assert answer["results"][0]["document"] == {"text": "hello"}
    assert answer["id"].startswith("rerank-") and answer["usage"]["total_tokens"] > 0
    _, best = await post(live, "/v1/rerank", query="hello", documents=documents, top_n=1, return_documents=False)
    assert best["results"] == [{"index": 1, "relevance_score": scores[0]}]
    for top_n in (0, 9):
        _, every = await post(live, "/v1/rerank", query="hello", documents=documents, top_n=top_n)
        assert every["results"] == answer["results"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"query": "a", "documents": []}, "documents", "documents must be a list of 1 to 2048 items, got 0"),
        ({"query": "", "documents": ["a"]}, "query", "query must not be empty"),
        ({"query": "a", "documents": ["a", ""]}, "documents.1", "documents.1 must not be empty"),
        (
            {"query": "a", "documents": [5]},
            "documents.0",
            "documents.0: input should be a text, or an object with its text",
        ),
        ({"query": "a", "documents": [{"title": "a"}]}, "documents.0.text", "documents.0.text is required"),
        ({"query": "a", "documents": ["a"], "top_n": -1}, "top_n", "top_n must be at least 0"),
        (
            {"query": "a", "documents": ["a"], "rank_fields": ["title"]},
            "rank_fields",
            "documents are read by their text",
        ),
        (
            {"query": "a", "documents": ["a"], "max_tokens_per_doc": 5},
            "max_tokens_per_doc",
            "truncate_prompt_tokens cuts",
        ),
        ({"documents": ["a"]}, "query", "query is required"),
    ],
)
async def test_bad_rankings_are_named(live: Live, fields: dict[str, Any], param: str, message: str) -> None:
    status, answer = await post(live, "/v1/rerank", **fields)
    assert (status, answer["error"]["param"]) == (400, param)
    assert message in answer["error"]["message"]


async def test_a_model_with_a_head_reads_pairs(tmp_path: Path) -> None:
    reader = word_pieces()
    reader.save(str(write_tokenizer(tmp_path / "bert") / "tokenizer.json"))
    told = iter([0.25, 0.75, 0.5, 0.125, 0.5])
    engine = ScriptedEngine(pool=lambda _: [next(told)], facts=SCORES, max_model_len=12)
    async with live_server(tmp_path, engine) as live:
        live.frontend._tokenizer = load_tokenizer(tmp_path / "bert")
        documents = ["the dog", "a king ran", "rain"]
        status, answer = await post(live, "/v1/rerank", query="the cat", documents=documents)
        assert status == 200
        assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(1, 0.75), (2, 0.5), (0, 0.25)]
        pairs = [reader.encode("the cat", document) for document in documents]
        assert [(one.prompt_token_ids, one.token_type_ids) for one in engine.requests] == [
            (pair.ids, pair.type_ids) for pair in pairs
        ]
        assert answer["usage"]["prompt_tokens"] == sum(len(pair.ids) for pair in pairs)
        status, answer = await post(live, "/v1/score", text_1=["the cat", "rain"], text_2=documents[:2])
        assert [one["score"] for one in answer["data"]] == [0.125, 0.5]
        assert engine.requests[-1].prompt_token_ids == reader.encode("rain", "a king ran").ids
        long = "the cat sat on the mat in the park"
        status, answer = await post(live, "/v1/score", text_1="rain", text_2=["a", long])
        assert (status, answer["error"]["param"]) == (400, "text_2.1")
        assert "maximum context length is 12 tokens, but text_2.1 has 13 tokens" in answer["error"]["message"]
        told = iter([1.0])
        status, answer = await post(live, "/v1/score", text_1="rain", text_2=long, truncate_prompt_tokens=7)
        assert status == 200
        assert engine.requests[-1].prompt_token_ids == reader.encode("rain", "the cat sat").ids
        status, answer = await post(live, "/v1/score", text_1="rain", text_2=long, truncate_prompt_tokens=3)
        assert (status, answer["error"]["param"]) == (400, "truncate_prompt_tokens")
        assert "must be above 3, the number of special tokens of a pair, got 3" in answer["error"]["message"]


async def test_null_is_absence(live: Live) -> None:
    answer = await embed(live, "a", encoding_format=None, add_special_tokens=None)
    assert answer["data"] == (await embed(live, "a"))["data"]
    assert (await post(live, "/tokenize", prompt="a", add_special_tokens=None))[0] == 200
    _, ranked = await post(live, "/v1/rerank", query="a", documents=["a"], return_documents=None)
    assert ranked["results"][0]["document"] == {"text": "a"}


async def test_equal_texts_have_a_cosine_of_one_at_most(tmp_path: Path) -> None:
    facts = PoolingFacts(task="embed", size=3, normalised=True)
    async with live_server(tmp_path, ScriptedEngine(pool=lambda _: [0.1, 0.7, 0.3], facts=facts)) as live:
        _, answer = await post(live, "/v1/score", text_1="a", text_2="a")
        assert 1 - 1e-6 < answer["data"][0]["score"] <= 1


@pytest.mark.parametrize("text", ["x" * 2_000_000, "rain " * 400_000, "x," * 1_000_000])
async def test_texts_are_encoded_as_far_as_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Word pieces: a word of any length may be one token."""
    word_pieces().save(str(write_tokenizer(tmp_path / "bert") / "tokenizer.json"))
    reader = load_tokenizer(tmp_path / "bert")
    encoded: list[str] = []
    ids, part = Tokenizer._ids, Tokenizer.part
    monkeypatch.setattr(Tokenizer, "_ids", lambda self, text, special: encoded.append(text) or ids(self, text, special))
    monkeypatch.setattr(Tokenizer, "part", lambda self, text: encoded.append(text) or part(self, text))
    for facts in (FACTS, SCORES):
        engine = ScriptedEngine(pool=lambda _: [0.5] * SIZE if facts is FACTS else [0.5], facts=facts)  # noqa: B023
        async with live_server(tmp_path, engine) as live:
            live.frontend._tokenizer = reader
            status, answer = await post(live, "/v1/score", text_1="rain", text_2=[text, "rain"])
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            status, answer = await post(live, "/v1/score", text_1="rain", text_2=text, truncate_prompt_tokens=-1)
            assert status == 200, answer
            await post(live, "/v1/rerank", query="the cat", documents=["rain", "the dog", "a king"])
    assert encoded.count("the cat") == 2, "once for each of the two models"
    assert max(map(len, encoded)) < 30_000


async def test_truncated_texts_keep_the_special_tokens_around_them(tmp_path: Path) -> None:
    reader = word_pieces()
    reader.save(str(write_tokenizer(tmp_path / "bert") / "tokenizer.json"))
    engine = embedder()
    async with live_server(tmp_path, engine) as live:
        live.frontend._tokenizer = load_tokenizer(tmp_path / "bert")
        await embed(live, "the cat sat on the mat", truncate_prompt_tokens=5)
        await embed(live, "the cat sat on the mat", truncate_prompt_tokens=5, add_special_tokens=False)
        await embed(live, "")
        assert [one.prompt_token_ids for one in engine.requests] == [
            reader.encode("the cat sat").ids,
            reader.encode("the cat sat on the", add_special_tokens=False).ids,
            reader.encode("").ids,
        ]
        status, answer = await post(live, "/v1/embeddings", input="the cat", truncate_prompt_tokens=2)
        assert (status, answer["error"]["param"]) == (400, "truncate_prompt_tokens")
        assert "must be above 2, the number of special tokens that every prompt has here" in answer["error"]["message"]


async def test_prompts_are_logged_where_that_is_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire")
    async with live_server(tmp_path, embedder(), log_requests=True) as live:
        await embed(live, ["hello", "you"])
    assert "prompts ['hello', 'you'] answers []" in caplog.text


async def test_keys_limits_ids_logs_and_metrics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire")
    async with live_server(
        tmp_path, embedder(), api_key=("secret",), requests_per_minute=2, tokens_per_minute=50
    ) as live:
        assert (await live.http.post("/v1/embeddings", json={"input": "a"})).status_code == 401
        headers = {"authorization": "Bearer secret", "x-request-id": "my-id"}
        response = await live.http.post("/v1/embeddings", json={"input": ["quite private", "b"]}, headers=headers)
        assert response.status_code == 200 and response.headers["x-request-id"] == "my-id"
        assert response.headers["x-ratelimit-limit-requests"] == "2"
        tokens = response.json()["usage"]["prompt_tokens"]
        response = await live.http.post("/v1/rerank", json={"query": "a", "documents": ["b"]}, headers=headers)
        left = int(response.headers["x-ratelimit-remaining-tokens"])
        assert 50 - tokens <= left <= 52 - tokens, "the tokens of the first were counted"
        assert (await live.http.post("/v1/score", json={}, headers=headers)).status_code == 429
        [line] = [r.getMessage() for r in caplog.records if "/v1/embeddings 200" in r.getMessage()]
        assert re.search(rf"id=my-id key=key-1 prompt={tokens} cached=2 completion=0 finish=stop$", line), line
        assert "private" not in caplog.text
        assert await live.metric("quire_prompt_tokens_total") == tokens + 2
        assert await live.metric('quire_requests_finished_total{finish_reason="stop"}') == 4
        assert await live.metric("quire_request_queue_time_seconds_count") == 4
        assert await live.metric("quire_request_duration_seconds_count") == 4


async def test_texts_pass_the_filters(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {pattern: secret, replace: word}\n- {pattern: forbidden, refuse: not here}\n")
    async with live_server(tmp_path / "model", embedder(), filter=(f"regex={rules}",)) as live:
        await embed(live, "a secret")
        await embed(live, ids_of("my secret"))
        await post(live, "/v1/rerank", query="secret", documents=[{"text": "no secret"}])
        assert [BACKEND.decode(request.prompt_token_ids) for request in live.engine.requests] == [
            "a word",
            "my word",
            "word",
            "no word",
        ]
        for path, body, param in (
            ("/v1/embeddings", {"input": ["a", "forbidden"]}, "input.1"),
            ("/v1/rerank", {"query": "a", "documents": ["forbidden"]}, "documents.0"),
            ("/v1/score", {"text_1": "forbidden", "text_2": "b"}, "text_1"),
        ):
            status, answer = await post(live, path, **body)
            assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "content_filter", param)


async def test_many_long_texts_do_not_hold_up_health(live: Live) -> None:
    """They are encoded beside the event loop."""
    task = asyncio.create_task(
        live.http.post("/v1/embeddings", json={"input": ["word " * 4000] * 20, "truncate_prompt_tokens": 5})
    )
    await asyncio.sleep(0)
    assert (await live.http.get("/health/live")).status_code == 200
    assert (await task).status_code == 200


async def test_the_document_describes_the_routes(live: Live) -> None:
    document = (await live.http.get("/openapi.json")).json()
    for path, field in (("/v1/embeddings", "input"), ("/v1/score", "text_1"), ("/v1/rerank", "documents")):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
        assert field in schema["properties"], json.dumps(schema)
