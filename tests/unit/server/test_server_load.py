"""Many clients of a real server process over a scripted engine: idle connections, streams, memory, CPU time of a chunk."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from server_process import Process, process

NUM_IDLE, NUM_STREAMS, NUM_TOKENS = 2000, 200, 100
MAX_IDLE_BYTES = 32 << 10
CHUNKS_PER_CPU_SECOND = 1500
"""The target; the test asks for a third of it, since other things run beside it."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def get(connection: Connection) -> None:
    reader, writer = connection
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    await reader.readuntil(b"}")


def request(num_tokens: int) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    body = json.dumps({"messages": messages, "stream": True, "max_tokens": num_tokens}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def stream(port: int) -> int:
    """The number of chunks with text of one answer, which ends as it should."""
    async with connected(port) as (reader, writer):
        writer.write(request(NUM_TOKENS))
        answer = await reader.read(-1)
    assert answer.startswith(b"HTTP/1.1 200") and b'"finish_reason":"length"' in answer and b"data: [DONE]" in answer
    return answer.count(b'"delta":{"content":"x"}')


@contextmanager
def stalled_reader(port: int) -> Iterator[None]:
    """One that asks for much and reads nothing, as long as this lasts."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", port))
        sock.sendall(request(4000))
        yield


async def round_of_streams(running: Process) -> float:
    """CPU seconds of the server for it."""
    before = cpu_seconds(running.handle.pid)
    counts = await asyncio.gather(*(stream(running.port) for _ in range(NUM_STREAMS)))
    assert counts == [NUM_TOKENS] * NUM_STREAMS
    return cpu_seconds(running.handle.pid) - before


@pytest.fixture
def many_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < NUM_IDLE + NUM_STREAMS + 100:
        pytest.skip(f"only {hard} files may be open here")


async def test_idle_connections_and_streams(tmp_path: Path, many_files: None) -> None:
    async with process(tmp_path, "long", log=tmp_path / "log") as running, AsyncExitStack() as stack:
        await running.line("curl")
        await round_of_streams(running)
        without = memory_bytes(running.handle.pid)
        idle: list[Connection] = []
        began_s = time.monotonic()
        while len(idle) < NUM_IDLE:
            fresh = await asyncio.gather(*(stack.enter_async_context(connected(running.port)) for _ in range(100)))
            await asyncio.gather(*map(get, fresh))
            idle += fresh
        each = (memory_bytes(running.handle.pid) - without) / NUM_IDLE
        with stalled_reader(running.port):
            await round_of_streams(running)
            before = memory_bytes(running.handle.pid)
            await round_of_streams(running)
        cpu_s = min([await round_of_streams(running) for _ in range(3)])
        grown = memory_bytes(running.handle.pid) - before
        per_second = NUM_STREAMS * NUM_TOKENS / cpu_s
        print(f"{per_second:.0f} chunks a CPU second; {before >> 20} MiB, {grown >> 10} KiB more after four rounds")
        print(f"{each / 1024:.1f} KiB for each idle connection")
        if time.monotonic() - began_s < 60:  # later the server may close them, as it says
            await asyncio.gather(*map(get, idle))
        assert per_second > CHUNKS_PER_CPU_SECOND / 3
        assert grown < before // 20
        assert each < MAX_IDLE_BYTES
