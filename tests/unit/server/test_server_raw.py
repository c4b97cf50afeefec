"""Bytes that no client would send, to the real server process: each case has its status, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from server_process import Process, process

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}).encode()
NUM_MUTATED, AT_ONCE = 600, 60
GIVES_UP_S = 0.5
"""A client that has sent a part of a request waits so long for an answer, and leaves."""
MAX_HEAD_BYTES = 64 << 10

pytestmark = pytest.mark.asyncio(loop_scope="module")


def post(body: bytes = BODY, *headers: str, path: str = CHAT, length: int | None = None, version: str = "1.1") -> bytes:
    lines = [f"POST {path} HTTP/{version}", "host: x", "content-type: application/json", *headers]
    if not any(line.lower().startswith("transfer-encoding") for line in headers) and length != -1:
        lines.append(f"content-length: {len(body) if length is None else length}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def closing(body: bytes = BODY, *headers: str, **options: Any) -> bytes:
    return post(body, "connection: close", *headers, **options)


def get(path: str = "/version", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "host: x", "connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def chunked(*chunks: bytes) -> bytes:
    return closing(b"".join(chunks), "transfer-encoding: chunked")


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def deep(levels: int) -> bytes:
    return (
        b'{"messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"a": '
        + b"[" * levels
        + b"]" * levels
        + b"}}"
    )


WHOLE = chunk(BODY) + b"0\r\n\r\n"
CASES: dict[str, tuple[bytes, int | None]] = {
    # bodies
    "no body": (closing(b""), 400),
    "no length": (closing(b"", length=-1), 400),
    "invalid UTF-8": (closing(b'{"prompt": "\xff\xfe"}'), 400),
    "UTF-16": (closing(BODY.decode().encode("utf-16")), 400),
    "a byte order mark": (closing(b"\xef\xbb\xbf" + BODY), 400),
    "gzip": (closing(b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "content-encoding: gzip"), 400),
    "NaN": (closing(BODY.replace(b"3}", b'3, "temperature": NaN}')), 400),
    "Infinity": (closing(BODY.replace(b"3}", b'3, "temperature": -Infinity}')), 400),
    "beyond a double": (closing(BODY.replace(b"3}", b'3, "temperature": 1e999}')), 400),
    "a number of 100 000 digits": (closing(BODY.replace(b"3}", b"9" * 100_000 + b"}")), 400),
    "half a surrogate pair": (closing(BODY.replace(b'"hi"', b'"\\ud83d"')), 400),
    "the other half": (closing(BODY.replace(b'"hi"', b'"\\ude00"')), 400),
    "a NUL in a text": (closing(BODY.replace(b'"hi"', b'"a\\u0000b"')), 200),
    "two keys alike": (closing(BODY.replace(b"3}", b'3, "max_tokens": 2}')), 200),
    "deep": (closing(b"[" * 90_000), 400),
    "deep, in a known place": (closing(deep(90_000)), 400),
    "deep, of more lists than are read": (closing(b"[" * 200_000), 413),
    "deep, as far as it is read": (closing(deep(100)), 200),
    "half a body, and the rest is another request": (closing(BODY[:20], length=20) + get(), 400),
    "an old client": (post(version="1.0"), 200),
    # heads
    "nothing but line ends, then a request": (b"\r\n" * 20 + get(), 200),
    "no version": (b"GET /version\r\n\r\n", None),
    "version 9": (get(version="9.9"), 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100c8010000c40303") + b"\x00" * 200, 400),
    "lower case": (get(method="get"), 400),
    "no such method": (get(method="BREW"), 400),
    "TRACE": (get(method="TRACE"), 405),
    "OPTIONS of all": (get("*", method="OPTIONS"), 404),
    "CONNECT": (get("example.org:443", method="CONNECT"), None),
    "the address of a proxy": (get("http://example.org/version"), None),
    "an upgrade": (get("/version", "upgrade: websocket", "connection: upgrade"), None),
    "a name with a blank": (get("/version", "x y: z"), 400),
    "a name in brackets": (get("/version", "x[]: z"), 400),
    "a NUL in a header": (get("/version", "x: a\0b"), 400),
    "a line end in a header": (get("/version", "x: a\rb"), 400),
    "latin-1 in a header": (get("/version", "x-request-id: \xff\xfe"), 200),
    "two lengths": (closing(BODY, "content-length: 5"), 400),
    "a length and chunks": (closing(WHOLE, "transfer-encoding: chunked", "content-length: 5"), 400),
    "a length of words": (closing(BODY, "content-length: ten", length=-1), 400),
    "a length below zero": (closing(BODY, length=-5), 400),
    "a length beyond 64 bits": (closing(BODY, length=10**30), 400),
    "a length beyond the limit": (post(BODY, length=10**12), 413),
    "a header too long": (get("/version", "x: " + "y" * 16 * MAX_HEAD_BYTES), 431),
    "too many headers": (get("/version", *(f"x-{n}: y" for n in range(20_000))), 431),
    "a path too long": (get("/" + "y" * 16 * MAX_HEAD_BYTES), None),
    "a long path": (get("/" + "y" * 8000), 404),
    "a NUL in a path": (get("/version%00"), 404),
    "no UTF-8 in a path": (get("/%ff%fe"), 404),
    "up and out": (get("/../../etc/passwd"), 404),
    "up and out, in disguise": (get("/v1/models/%2e%2e%2fversion"), 404),
    "a long query": (get("/version?" + "q" * 8000), 200),
    "a body that nobody asked for": (get("/version", "content-length: 5") + b"12345", 200),
    "a promise to wait": (closing(BODY, "expect: 100-continue"), 200),
    # chunks
    "chunks": (chunked(WHOLE), 200),
    "chunks of one byte": (chunked(*(chunk(bytes([byte])) for byte in BODY), b"0\r\n\r\n"), 200),
    "chunks with extensions": (chunked(WHOLE.replace(b"\r\n", b";a=b\r\n", 1)), 200),
    "a chunk whose size is none": (chunked(b"xyz\r\n" + BODY), 400),
    "a chunk whose size is below zero": (chunked(b"-5\r\n" + BODY), 400),
    "a chunk whose size is beyond 64 bits": (chunked(b"F" * 20 + b"\r\n" + BODY), 400),
    "a chunk whose size is in C": (chunked(b"0x5\r\n12345\r\n0\r\n\r\n"), 400),
    "a chunk that is longer than it says": (chunked(b"5\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunks, compressed": (closing(WHOLE, "transfer-encoding: gzip, chunked"), None),
    "chunks, or so": (closing(WHOLE, "transfer-encoding: xchunked"), 400),
}  # fmt: skip
"""Bytes, and the status of the first answer; None: the libraries' business, but no fault."""


@dataclass(frozen=True)
class Left:
    """What a server holds."""

    in_flight: int
    cache: float
    files: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Process]:
    folder = tmp_path_factory.mktemp("raw")
    async with process(folder, log=folder / "log") as running:
        await running.line("curl")
        yield running
        log = (folder / "log").read_text()
        assert "Traceback" not in log and " error " not in log.lower(), log[-3000:]


async def talk(port: int, *pieces: bytes, wait_s: float = 20) -> bytes:
    """What the server says until it closes, or until the client has waited long enough."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    try:
        async with asyncio.timeout(wait_s):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while more := await reader.read(1 << 16):
                said += more
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return said


def status(said: bytes) -> int:
    """Of the first answer, but for 100; 0 where there is none."""
    found = [int(code) for code in re.findall(rb"(?:^|\r\n\r\n)HTTP/1\.1 (\d{3}) ", said)]
    return next((code for code in found if code != 100), 0)


async def left(server: Process) -> Left:
    load = (await server.http.get("/load")).json()
    return Left(load["server_load"] + load["running"], load["cache_usage"] or 0, num_files(server.handle.pid))


def num_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


async def healthy(server: Process, before: Left) -> None:
    """It answers, and holds no more than before, as soon as it has seen that clients have left."""
    answer = await server.http.post(CHAT, content=BODY)
    assert (answer.status_code, answer.json()["choices"][0]["finish_reason"]) == (200, "stop")
    assert (await server.http.get("/health/ready")).status_code == 200
    async with asyncio.timeout(20):
        while await left(server) != before:
            pass


async def settled(server: Process) -> Left:
    """What an idle server holds, with the one connection that asks."""
    await server.http.post(CHAT, content=BODY)
    return await left(server)


@pytest.mark.parametrize("case", CASES)
async def test_a_case_has_its_status(server: Process, case: str) -> None:
    sent, expected = CASES[case]
    before = await settled(server)
    told = status(await talk(server.port, sent, wait_s=20 if expected else 1))
    if expected is None:
        assert told < 500
    elif expected in (413, 431) and not told:
        pass  # the client was still writing: the answer was lost with the connection
    else:
        assert told == expected
    await healthy(server, before)


@pytest.mark.parametrize("kib", [80, 96, 112, 128, 192])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_head_that_comes_whole_is_bounded_too(server: Process, kib: int, method: str) -> None:
    """In whatever pieces the server reads it, one that holds all of it among them."""
    before = await settled(server)
    filler = "x-filler: " + "y" * (kib << 10)
    sent = get("/version", filler) if method == "GET" else closing(BODY, filler)
    said = await talk(server.port, sent)
    assert status(said) in (431, 0), "0: the client was still writing, and lost the answer with the connection"
    said = await talk(server.port, get("/version", "x-filler: " + "y" * (48 << 10)))
    assert status(said) == 200, "this is within the bound"
    await healthy(server, before)


async def test_pipelined_requests_are_answered_in_order(server: Process) -> None:
    before = await settled(server)
    asked = [post(), b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n", post(b"{"), post(BODY, path="/nothing")] * 5
    said = await talk(server.port, b"".join(asked) + get())
    codes = [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", said)]
    assert codes == [200, 200, 400, 404] * 5 + [200]
    codes = [
        int(code)
        for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", await talk(server.port, post() + b"\0nonsense\r\n\r\n"))
    ]
    assert codes in ([200, 400], [200], []), "what comes behind is no request: that is no answer to the one before"
    await healthy(server, before)


async def test_who_leaves_anywhere_leaves_nothing_behind(server: Process) -> None:
    """Closed and reset, after every few bytes of a request, also in the middle of a stream."""
    before = await settled(server)
    streamed = post(BODY.replace(b"3}", b'400, "stream": true}'))
    for end in [*range(0, len(streamed), 7), len(streamed)]:
        for reset in (False, True):
            with socket.create_connection(("127.0.0.1", server.port)) as sock:
                sock.sendall(streamed[:end])
                if end == len(streamed):
                    sock.recv(10)
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    await healthy(server, before)


async def test_connections_that_never_send_a_whole_request_hold_nobody_back(server: Process) -> None:
    before = await settled(server)
    pieces = [b"", b"G", b"GET /version HTTP/1.1\r\nx: ", post(BODY[:-1], length=len(BODY)), post(b"", length=5)]
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    try:
        for number, sock in enumerate(held):
            sock.sendall(pieces[number % len(pieces)])
        async with asyncio.timeout(10):
            answers = await asyncio.gather(*(talk(server.port, closing()) for _ in range(10)))
        assert [status(one) for one in answers] == [200] * 10
    finally:
        for sock in held:
            sock.close()
    await healthy(server, before)


def flipped(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data))]


def doubled(chance: random.Random, data: bytes) -> bytes:
    begin, end = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    return data[:end] + data[begin:]


def without(chance: random.Random, data: bytes) -> bytes:
    begin, end = sorted((chance.randrange(len(data)), chance.randrange(len(data))))
    return data[:begin] + data[end:]


def strewn(chance: random.Random, data: bytes) -> bytes:
    strange = chance.choice(
        [b"\0", b"\r\n", b"\r\n\r\n", b"\xff", b'"', b"{", b"\\ud800", b"9" * 50, b"e999", b": ", b"%00", b"[" * 3000]
    )
    at = chance.randrange(len(data))
    return data[:at] + strange + data[at:]


MUTATIONS: Sequence[Callable[[random.Random, bytes], bytes]] = (flipped, cut, doubled, without, strewn)


async def test_mutated_requests_are_no_fault_of_the_server(server: Process) -> None:
    chance = random.Random(11)
    before = await settled(server)
    seeds = [
        closing(), chunked(WHOLE), get("/v1/models"), closing(b'{"input": "x"}', path="/v1/responses"),
        closing(b'{"prompt": ["a", "b"], "n": 2, "logprobs": 1, "stream": true}', path="/v1/completions"),
        closing(b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "max_tokens": 2}', path="/v1/messages"),
        closing(b'{"tokens": [5, 6]}', path="/detokenize"),
    ]  # fmt: skip
    statuses: dict[int, int] = {}
    for _ in range(NUM_MUTATED // AT_ONCE):
        sent = []
        for _ in range(AT_ONCE):
            data = chance.choice(seeds)
            for _ in range(chance.choice([1, 1, 2, 4])):
                data = chance.choice(MUTATIONS)(chance, data) or b"\n"
            sent.append(data)
        for data, said in zip(
            sent, await asyncio.gather(*(talk(server.port, one, wait_s=GIVES_UP_S) for one in sent)), strict=True
        ):
            told = status(said)
            assert told < 500 and b"event: error" not in said, (data, said[:500])
            statuses[told] = statuses.get(told, 0) + 1
    assert statuses.keys() >= {0, 200, 400, 404}, statuses
    await healthy(server, before)
