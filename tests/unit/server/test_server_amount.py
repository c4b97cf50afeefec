"""Bodies of many small values: refused before they are read, whatever the bytes are. Long texts are one value."""

from __future__ import annotations

from pathlib import Path

import pytest

from live_server import live_server
from quire.errors import RequestError
from quire.server.bodies.amount import MAX_OBJECTS, MAX_TEXTS, MAX_VALUES, bytes_as_read
from scripted_engine import ScriptedEngine

ANY = b'{"prompt": "x", "max_tokens": 1, "metadata": %s}'


def texts(number: int) -> bytes:
    return b"[" + b",".join([b'"a"'] * number) + b"]"


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": "' + b"a, [b], {c} " * 1_000_000 + b'"}',
        b'{"a": "' + rb"\"quoted\", " * 1_000_000 + b'"}',
        b'{"a": "' + rb"\\" * 1_000_000 + b'", "b": "' + b"," * 2_000_000 + b'"}',
        texts(MAX_TEXTS),
        b"[" + b"5," * (MAX_VALUES - 1) + b"5]",
        b'"' * 11 + b"\xff" * 1000,
        b"",
    ],
)
def test_long_texts_are_one_value(data: bytes) -> None:
    bytes_as_read(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (texts(MAX_TEXTS + 1), "200001 texts and names of fields, but at most 200000"),
        (b"{" + b'"\\\\":1,' * (MAX_TEXTS + 1) + b"}", "200001 texts"),
        (b"[" + b"5," * MAX_VALUES + b"5]", "1000001 values, but at most 1000000"),
        (b"[" + b"{}," * MAX_OBJECTS + b"0]", "100001 lists and objects, but at most 100000"),
        (b"[" * (MAX_OBJECTS + 1), "100001 lists and objects"),
        (b'["a\\"b", ' + b"[]," * MAX_OBJECTS + b'"c"]', "100001 lists and objects"),
        (b"[" + b"[5,5,5,5,5,5,5,5,5,5]," * (MAX_OBJECTS - 1) + b"5]", "1099990 values"),
    ],
)
def test_many_values_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(RequestError, match=words) as refused:
        bytes_as_read(data)
    assert (refused.value.status, refused.value.code) == (413, "body_too_large")


async def test_it_is_so_at_every_route(tmp_path: Path) -> None:
    """A body just within the bound is answered by what is in it."""
    headers = {"content-type": "application/json"}
    async with live_server(tmp_path, ScriptedEngine()) as live:
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/v1/messages"):
            response = await live.http.post(path, content=ANY % texts(MAX_TEXTS), headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large"), path
        response = await live.http.post("/v1/completions", content=ANY % texts(MAX_TEXTS - 4), headers=headers)
        assert response.status_code == 200
        assert not live.engine.requests[1:]


async def test_no_more_tokens_become_a_text_than_the_model_takes(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine()) as live:
        assert (await live.http.post("/detokenize", json={"tokens": [5] * 128})).status_code == 200
        response = await live.http.post("/detokenize", json={"tokens": [5] * 129})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tokens")
        assert error["message"] == "this model's maximum context length is 128 tokens, but tokens has 129"
