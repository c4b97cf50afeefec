"""The streaming client against a scripted server on a real socket: bodies cut anywhere, refusals, errors within a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from quire.bench import client
from quire.bench.client import Answer, Server
from quire.bench.serve import summary
from quire.bench.workloads import Work
from quire.errors import RequestError


def event(**content: object) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


ANSWER = (
    b": comment\n\n"
    + event(choices=[{"text": "a"}])
    + event(choices=[{"text": ""}])
    + event(choices=[{"text": "é"}])
    + event(choices=[], usage={"completion_tokens": 5})
    + b"data: [DONE]\n\n"
)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    frames = b"".join(f"{len(piece):x};x=y\r\n".encode() + piece + b"\r\n" for piece in pieces)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + frames + b"0\r\n\r\n"


@asynccontextmanager
async def serving(reply: bytes, asked: list[bytes] | None = None) -> AsyncIterator[Server]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        body = await reader.readexactly(length)
        if asked is not None:
            asked.append(body)
        writer.write(reply)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield Server(f"http://127.0.0.1:{port}", "m", {"cache_prompt": False})


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_a_chunked_stream_cut_anywhere(size: int) -> None:
    asked: list[bytes] = []
    async with serving(chunked(ANSWER, size), asked) as server:
        answer = await client.complete(server, Work([1, 2, 3], 5))
    assert (len(answer.stamps), answer.num_tokens) == (2, 5)
    assert answer.asked_s < answer.stamps[0] <= answer.stamps[1]
    body = json.loads(asked[0])
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"], body["cache_prompt"]) == ([1, 2, 3], 5, True, False)


async def test_bodies_of_known_length_and_up_to_the_end() -> None:
    for head in (f"Content-Length: {len(ANSWER)}\r\n", ""):
        async with serving(f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + ANSWER) as server:
            assert (await client.complete(server, Work([1], 5))).num_tokens == 5


async def test_a_refusal_and_an_error_in_the_stream_say_what_the_server_said() -> None:
    async with serving(b"HTTP/1.1 503 Busy\r\nContent-Length: 9\r\n\r\nqueue ful") as server:
        with pytest.raises(RequestError, match="status 503: queue ful"):
            await client.complete(server, Work([1], 5))
    async with serving(chunked(event(error={"message": "no blocks"}), 99)) as server:
        with pytest.raises(RequestError, match="no blocks"):
            await client.complete(server, Work([1], 5))
    async with serving(chunked(b"data: [DONE]\n\n", 99)) as server:
        with pytest.raises(RequestError, match="no text"):
            await client.complete(server, Work([1], 5))


async def test_clients_keep_so_many_requests_open_and_answers_keep_their_order() -> None:
    open_now = most = 0
    together = asyncio.Barrier(3)  # the first three requests wait for each other: fewer clients would never get past it

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_now, most
        head = await reader.readuntil(b"\r\n\r\n")
        body = json.loads(await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0])))
        open_now += 1
        most = max(most, open_now)
        if body["max_tokens"] <= 3:
            await together.wait()
        usage = event(choices=[{"text": "x"}], usage={"completion_tokens": body["max_tokens"]})
        open_now -= 1
        writer.write(chunked(usage + b"data: [DONE]\n\n", 64))
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        works = [Work([1], count) for count in range(1, 8)]
        ended: list[None] = []
        answers, wall_s = await client.drive(Server(url, "m", {}), works, 3, tick=lambda: ended.append(None))
    assert [answer.num_tokens for answer in answers] == list(range(1, 8))
    assert len(ended) == 7
    assert most == 3
    assert wall_s > 0


def test_the_summary_of_a_run() -> None:
    works = [Work([1] * 10, 3), Work([1] * 20, 2)]
    answers = [Answer(0.0, [1.0, 1.5, 2.5], 3), Answer(1.0, [3.0, 3.25], 2)]
    figures = summary(works, answers, wall_s=4.0)
    assert figures["requests_per_s"] == 0.5
    assert figures["generated_tokens_per_s"] == 1.25
    assert figures["total_tokens_per_s"] == 8.75
    assert figures["ttft_p50_s"] == 1.5
    assert figures["itl_p50_s"] == 0.5
    with pytest.raises(RequestError, match="answer 1 has 2 tokens instead of 9"):
        summary([works[0], Work([1], 9)], answers, wall_s=4.0)
