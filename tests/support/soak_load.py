"""A mixed load for `soak`: all endpoints, good and bad bodies, clients that leave. Each kind says which answers are right."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

WORDS = [
    "the",
    "a",
    "river",
    "mountain",
    "seven",
    "blue",
    "Paris",
    "write",
    "story",
    "because",
    "number",
    "count",
    "list",
    "never",
    "again",
    "🎉",
    "naïve",
    "東京",
]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "size": {"enum": ["small", "large"]}},
    "required": ["city", "size"],
    "additionalProperties": False,
}
TOOL = {"name": "look_up", "description": "Looks a city up", "parameters": SCHEMA}
BUSY = frozenset({503})
"""The queue is bounded: to be refused with Retry-After is right."""
MOST_TOLD = 50


@dataclass
class Tally:
    """What came of requests, by kind: good, refused as they should be, busy, left by the client; and faults, in words."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def num_faults(self) -> int:
        return sum(count for (_, outcome), count in self.outcomes.items() if outcome == "fault")

    def fault(self, kind: str, what: str) -> None:
        """Count it, and say it at once."""
        self.outcomes[kind, "fault"] += 1
        if len(self.faults) < MOST_TOLD:
            self.faults.append(f"{kind}: {what}")
            print(f"fault: {self.faults[-1]}", file=sys.stderr, flush=True)

    def unanswered(self) -> list[str]:
        """Kinds of which none was answered as it should be. Refused or left alone, a run says nothing about them."""
        right = {name: "good" if kind.good == 200 else "refused" for name, kind in KINDS.items()} | {"GET": "good"}
        return [name for name, outcome in right.items() if not self.outcomes[name, outcome]]


Make = Callable[[random.Random], Mapping[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A request. good: the status of a right answer. ends: of a stream, what its last event begins with."""

    path: str
    make: Make
    good: int = 200
    ends: tuple[bytes, ...] = ()


def text(chance: random.Random, most: int = 60) -> str:
    return " ".join(chance.choices(WORDS, k=chance.randint(1, most)))


def said(chance: random.Random, most: int = 60) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text(chance, most)}]


def limit(chance: random.Random) -> int:
    return chance.choice([1, 4, 16, 40])


CHAT, OLD = "/v1/chat/completions", "/v1/completions"
DONE = (b"data: [DONE]",)
KINDS: dict[str, Kind] = {
    "chat": Kind(CHAT, lambda c: {"messages": said(c), "max_tokens": limit(c)}),
    "chat, streamed": Kind(CHAT, lambda c: {"messages": said(c), "max_tokens": limit(c), "stream": True, "stream_options": {"include_usage": True}}, ends=DONE),
    "chat, n, log probabilities": Kind(CHAT, lambda c: {"messages": said(c), "max_tokens": 8, "n": 3, "logprobs": True, "top_logprobs": 3, "seed": c.randint(0, 9)}),
    "a forced call": Kind(CHAT, lambda c: {"messages": said(c, 10), "max_tokens": 60, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}),
    "a schema": Kind(CHAT, lambda c: {"messages": said(c, 10), "max_tokens": 60, "guided_json": {**SCHEMA, "title": f"t{c.randint(0, 5)}"}}),
    "completions": Kind(OLD, lambda c: {"prompt": [text(c), text(c)], "max_tokens": limit(c), "logprobs": 2, "echo": c.random() < 0.5}),
    "completions, streamed": Kind(OLD, lambda c: {"prompt": text(c), "max_tokens": limit(c), "stream": True, "stop": ["."]}, ends=DONE),
    "a prompt that is scored": Kind(OLD, lambda c: {"prompt": text(c), "max_tokens": 0, "echo": True, "logprobs": 1}),
    "a long prompt": Kind(OLD, lambda c: {"prompt": text(c, 3) + " x" * c.randint(100, 300), "max_tokens": 2}),
    "responses": Kind("/v1/responses", lambda c: {"input": text(c), "max_output_tokens": limit(c)}),
    "responses, streamed": Kind("/v1/responses", lambda c: {"input": text(c), "max_output_tokens": limit(c), "stream": True}, ends=(b"event: response.completed\n", b"event: response.incomplete\n")),
    "messages": Kind("/v1/messages", lambda c: {"messages": said(c), "max_tokens": limit(c)}),
    "messages, streamed": Kind("/v1/messages", lambda c: {"messages": said(c), "max_tokens": limit(c), "stream": True}, ends=(b"event: message_stop\n",)),
    "count_tokens": Kind("/v1/messages/count_tokens", lambda c: {"messages": said(c)}),
    "generate": Kind("/generate", lambda c: {"prompt": text(c), "max_tokens": limit(c), "temperature": 0}),
    "tokenize": Kind("/tokenize", lambda c: {"prompt": text(c, 200)}),
    "detokenize": Kind("/detokenize", lambda c: {"tokens": [c.randint(0, 4000) for _ in range(50)]}),
    "a bad value": Kind(CHAT, lambda c: {"messages": said(c), **c.choice([{"temperature": -1}, {"n": 0}, {"stop": [""]}, {"max_tokens": 10**9}])}, good=400),
    "a bad grammar": Kind(CHAT, lambda c: {"messages": said(c), "guided_regex": c.choice(["(", "[z-a]", "(?=x)y"])}, good=400),
    "too long": Kind(OLD, lambda c: {"prompt": "x " * 5000}, good=400),
    "no such model": Kind(CHAT, lambda c: {"model": "nobody", "messages": said(c)}, good=404),
}  # fmt: skip
GETS = ("/metrics", "/v1/models", "/load", "/health/ready", "/openapi.json", "/version")
RAW = (
    b"\x16\x03\x01\x00\xc8\x01\x00\x00", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n\xff\xff\xff", b"GET /" + b"y" * 100_000,
)  # fmt: skip


class Load:
    """Workers that send until they are told to rest. url: of the server."""

    def __init__(self, url: str, tally: Tally, *, workers: int, seed: int) -> None:
        self._limits = httpx.Limits(max_connections=workers, max_keepalive_connections=workers)
        self._address = httpx.URL(url)
        self._tally = tally
        self._chances = [random.Random(seed + number) for number in range(workers)]

    async def run(self, seconds: float) -> None:
        """Send for so long, and until all of it is answered. No connection is left, so that what is open then is the server's own."""
        end_s = asyncio.get_running_loop().time() + seconds
        async with httpx.AsyncClient(base_url=self._address, timeout=120, limits=self._limits) as self._http:
            await asyncio.gather(*(self._worker(chance, end_s) for chance in self._chances))

    async def _worker(self, chance: random.Random, end_s: float) -> None:
        while asyncio.get_running_loop().time() < end_s:
            draw = chance.random()
            if draw < 0.06:
                path = chance.choice(GETS)
                await self._guarded("GET", path, self._get(path))
            elif draw < 0.1:
                data = chance.choice(RAW)
                await self._guarded("no HTTP", repr(data[:80]), self._raw(data))
            else:
                name = chance.choice(list(KINDS))
                kind = KINDS[name]
                body = kind.make(chance)
                leaves = kind.good == 200 and chance.random() < 0.15
                shown = f"{kind.path} {json.dumps(body)[:600]}" + (", left early" if leaves else "")
                await self._guarded(name, shown, self._send(kind, body, chance, leaves=leaves))

    async def _guarded(self, name: str, asked: str, work: Awaitable[str]) -> None:
        began_s = time.monotonic()
        try:
            self._tally.outcomes[name, await work] += 1
        except (AssertionError, httpx.HTTPError, OSError) as exc:
            what = str(exc) if isinstance(exc, AssertionError) else f"{type(exc).__name__}: {exc}"
            self._tally.fault(name, f"after {time.monotonic() - began_s:.1f} s: {what}; asked: {asked}")

    async def _get(self, path: str) -> str:
        response = await self._http.get(path)
        assert response.status_code == 200, f"{response.status_code} {response.text[-300:]!r}"
        return "good"

    async def _send(self, kind: Kind, body: Mapping[str, Any], chance: random.Random, *, leaves: bool) -> str:
        asked = self._http.build_request("POST", kind.path, json=body)
        if leaves and not kind.ends:
            return await self._left_waiting(asked, chance)
        response = await self._http.send(asked, stream=True)
        try:
            if leaves and kind.ends and response.status_code == 200:
                async for _ in response.aiter_bytes():
                    return "left"
            content = await response.aread()
        finally:
            await response.aclose()
        if response.status_code in BUSY:
            assert "retry-after" in response.headers, "503 without Retry-After"
            return "busy"
        assert response.status_code == kind.good, f"{response.status_code} {content[-300:]!r}"
        if kind.good == 200:
            assert b"event: error" not in content, f"{content[-300:]!r}"
            assert not kind.ends or ended(content, kind.ends), f"it does not end: {content[-300:]!r}"
            return "good"
        return "refused"

    async def _left_waiting(self, asked: httpx.Request, chance: random.Random) -> str:
        """A client that waits for a moment only."""
        try:
            async with asyncio.timeout(chance.uniform(0, 0.3)):
                response = await self._http.send(asked)
            assert response.status_code in (200, *BUSY), f"{response.status_code} {response.text[-300:]!r}"
        except TimeoutError:
            return "left"
        return "good"

    async def _raw(self, data: bytes) -> str:
        _, writer = await asyncio.open_connection(self._address.host, self._address.port)
        writer.write(data)
        writer.close()
        return "left"


def ended(content: bytes, ends: tuple[bytes, ...]) -> bool:
    """Whether the last event of a stream is whole and begins so."""
    events = content.split(b"\n\n")
    return events[-1] == b"" and events[-2:][0].startswith(ends)


def table(tally: Tally) -> str:
    """For people."""
    columns = ("good", "refused", "busy", "left", "fault")
    names = list(dict.fromkeys(name for name, _ in tally.outcomes))
    rows = [("request", *columns)]
    rows += [(name, *(str(tally.outcomes[name, column]) for column in columns)) for name in sorted(names)]
    totals = (sum(count for (_, one), count in tally.outcomes.items() if one == column) for column in columns)
    rows.append(("all", *map(str, totals)))
    width = max(len(row[0]) for row in rows)
    return "\n".join(row[0].ljust(width) + "".join(cell.rjust(9) for cell in row[1:]) for row in rows)
