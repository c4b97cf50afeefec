"""A streaming client of an OpenAI server: asyncio's sockets and nothing else, so that it costs the server's CPUs little."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from quire.bench.workloads import Work
from quire.errors import RequestError

READ_TIMEOUT_S = 600.0
_LINE_LIMIT = 1 << 22


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer: `asked_s` and the time of each chunk that brought text (perf_counter), tokens by the server's count."""

    asked_s: float
    stamps: list[float]
    num_tokens: int

    @property
    def ttft_s(self) -> float:
        return self.stamps[0] - self.asked_s


@dataclass(frozen=True, slots=True)
class Server:
    """Where to send requests. extra: more fields of each request's body."""

    url: str
    model: str
    extra: Mapping[str, Any]

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "127.0.0.1", parts.port or 80


async def drive(
    server: Server, works: Sequence[Work], clients: int, *, tick: Callable[[], None] = lambda: None
) -> tuple[list[Answer], float]:
    """Answers in the order of works, and seconds for all: `clients` of them at any time, each sending its next when one ends."""
    waiting = list(enumerate(works))[::-1]
    answers: dict[int, Answer] = {}

    async def client() -> None:
        while waiting:
            index, work = waiting.pop()
            answers[index] = await complete(server, work)
            tick()

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(clients, len(works))):
            group.create_task(client())
    return [answers[index] for index in range(len(works))], time.perf_counter() - began


async def complete(server: Server, work: Work) -> Answer:
    """One greedy completion that goes on past end tokens, streamed. Raises RequestError with what the server said instead."""
    body = {
        "model": server.model,
        "prompt": work.prompt,
        "max_tokens": work.num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **server.extra,
    }
    stamps: list[float] = []
    told: int | None = None
    asked_s = time.perf_counter()
    async for data in _events(server.address, "/v1/completions", body):
        content = json.loads(data)
        if "error" in content:
            raise RequestError(f"the server at {server.url} answered with an error: {content['error']}")
        if any(choice.get("text") or choice.get("token_ids") for choice in content.get("choices") or ()):
            stamps.append(time.perf_counter())
        if usage := content.get("usage"):
            told = usage["completion_tokens"]
    if not stamps:
        raise RequestError(f"the server at {server.url} answered with no text to a prompt of {len(work.prompt)} tokens")
    return Answer(asked_s, stamps, len(stamps) if told is None else told)


async def get(url: str, path: str) -> tuple[int, bytes]:
    """Status and body. Raises OSError where nobody listens."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=_LINE_LIMIT)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
        status, headers = await _head(reader)
        return status, b"".join([piece async for piece in _body(reader, headers)])
    finally:
        writer.close()


async def _events(address: tuple[str, int], path: str, body: Mapping[str, Any]) -> AsyncIterator[bytes]:
    """The data of each server-sent event up to [DONE]."""
    content = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(*address, limit=_LINE_LIMIT)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        async with asyncio.timeout(READ_TIMEOUT_S):
            status, headers = await _head(reader)
        if status != 200:
            said = b"".join([piece async for piece in _body(reader, headers)]).decode(errors="replace")
            raise RequestError(f"the server refused a request of the benchmark with status {status}: {said[:500]}")
        buffer = b""
        async for piece in _body(reader, headers):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        return
                    yield data
    finally:
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers, names in lower case."""
    words = (await reader.readline()).split(None, 2)
    if len(words) < 2:
        raise ConnectionResetError("the server closed the connection without an answer")
    headers: dict[bytes, bytes] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return int(words[1]), headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[bytes, bytes]) -> AsyncIterator[bytes]:
    """The body as it comes: chunked, of known length, or up to the end (RFC 9112, section 6)."""
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        while size := int((await reader.readline()).partition(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif (length := headers.get(b"content-length")) is not None:
        yield await reader.readexactly(int(length))
    else:
        while piece := await reader.read(1 << 16):
            yield piece
