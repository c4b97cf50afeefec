"""Clients that keep a model busy while something else is tested, and count what went wrong."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import httpx

from stack.ask import stream_chat
from stack.progress import StepFailed


@dataclass
class Load:
    """`clients` threads, each asking one streamed question after the other until the block ends.

    to_the_end: each answer has max_tokens. completed: whole answers. errors: one line each for a refused request, a broken or an empty stream.
    """

    base_url: str
    model: str
    clients: int
    max_tokens: int = 64
    to_the_end: bool = False
    completed: int = 0
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(n,), name=f"client {n}", daemon=True)
            for n in range(self.clients)
        ]

    def _client(self, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            question = f"Client {number}, turn {turn}: tell me about the number {number * 1000 + turn}."
            try:
                pieces = stream_chat(
                    self.base_url, self.model, question, max_tokens=self.max_tokens, to_the_end=self.to_the_end
                )
                answer = "".join(pieces)
            except (httpx.HTTPError, StepFailed, ValueError, LookupError) as exc:
                with self._lock:
                    self.errors.append(f"client {number}, turn {turn}: {type(exc).__name__}: {exc}")
                self._stop.wait(0.2)  # a router that refuses at once must not be flooded
                continue
            with self._lock:
                if answer:
                    self.completed += 1
                else:
                    self.errors.append(f"client {number}, turn {turn}: an empty answer")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=120)
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck and exc is None:
            raise AssertionError(f"requests that never ended: {stuck}")
