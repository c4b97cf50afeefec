"""An engine process that computes nothing: `python -m quire.bench.echo_engine FOLDER INTERVAL_S`, started by `echo_server`.

It speaks as `quire.engine.process` does, and says each prompt over and over, a token for each request every INTERVAL_S seconds. What a
server does with that is all its own work.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import zmq

import quire
from quire.engine import wire
from quire.request import (
    AbortRequest,
    AddRequest,
    EngineReady,
    FinishReason,
    Shutdown,
    StepOutputs,
    StepStats,
    ToEngine,
    TokenDelta,
)

HEARTBEAT_S = 1.0
READY = EngineReady(
    max_model_len=4096,
    num_blocks=1 << 16,
    block_size=16,
    vocab_size=1 << 20,  # whatever the tokenizer has
    info={"version": quire.__version__, "device": "none", "dtype": "none"},
    startup_s={},
)


@dataclass(slots=True)
class _Live:
    prompt: list[int]
    max_tokens: int
    queue_s: float | None
    produced: int = 0


class Echo:
    """The requests there are. Pure."""

    def __init__(self) -> None:
        self._live: dict[str, _Live] = {}

    def __len__(self) -> int:
        return len(self._live)

    def add(self, request: AddRequest, now_s: float) -> None:
        """now_s: by the monotonic clock."""
        for request_id in (request.request_id, *(sibling.request_id for sibling in request.siblings)):
            most = request.params.max_tokens or 1
            self._live[request_id] = _Live(request.prompt_token_ids, most, max(now_s - request.arrival_s, 0.0))

    def abort(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._live.pop(request_id, None)

    def step(self) -> list[TokenDelta]:
        """A token for each."""
        return [self._advance(request_id, live) for request_id, live in list(self._live.items())]

    def _advance(self, request_id: str, live: _Live) -> TokenDelta:
        token = live.prompt[live.produced % len(live.prompt)]
        live.produced += 1
        ended = live.produced == live.max_tokens
        if ended:
            del self._live[request_id]
        queue_s, live.queue_s = live.queue_s, None
        reason = FinishReason.LENGTH if ended else None
        return TokenDelta(request_id=request_id, token_ids=[token], finish_reason=reason, queue_s=queue_s)


def stats(num_running: int, num_generated: int, now_s: float) -> StepStats:
    """Of a step in which nothing took time."""
    return StepStats(
        num_waiting=0,
        num_running=num_running,
        num_swapped=0,
        num_blocks=READY.num_blocks,
        num_blocks_used=num_running,
        step_s=0.0,
        batch_size=num_generated,
        num_prompt_tokens=0,
        num_generated_tokens=num_generated,
        prefix_cache_queries=0,
        prefix_cache_hits=0,
        preemptions_recompute=0,
        preemptions_swap=0,
        heartbeat_s=now_s,
    )


def run(requests: zmq.Socket[bytes], outputs: zmq.Socket[bytes], lifeline: int, interval_s: float) -> None:
    """Until told to stop, or nobody is left who could. A step that is late moves all later ones."""
    echo = Echo()
    poller = zmq.Poller()
    poller.register(requests, zmq.POLLIN)
    poller.register(lifeline, zmq.POLLIN)
    due_s = time.monotonic()
    while True:
        ready = dict(poller.poll(math.ceil(max(due_s - time.monotonic(), 0.0) * 1000)))
        if lifeline in ready:
            return
        while requests in ready:
            try:
                message: ToEngine = wire.to_engine.decode(requests.recv(zmq.NOBLOCK))
            except zmq.Again:
                break
            now_s = time.monotonic()
            match message:
                case AddRequest():
                    due_s = due_s if echo else min(due_s, now_s + interval_s)
                    echo.add(message, now_s)
                case AbortRequest(request_ids=ids):
                    echo.abort(ids)
                case Shutdown():
                    return
        if (now_s := time.monotonic()) >= due_s:
            deltas = echo.step()
            outputs.send(wire.encoder.encode(StepOutputs(deltas=deltas, stats=stats(len(echo), len(deltas), now_s))))
            due_s = max(due_s + interval_s, now_s) if deltas else now_s + HEARTBEAT_S


def main(arguments: list[str]) -> int:
    """Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server drains, and ends this process then
    if not sys.stdin.buffer.readline():
        return 0  # the server ended before it had a configuration
    endpoints, context = wire.endpoints(Path(arguments[0])), zmq.Context()
    requests, outputs = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outputs.set(zmq.SNDHWM, 0)
    requests.connect(endpoints.requests)
    outputs.connect(endpoints.outputs)
    outputs.send(wire.encoder.encode(READY))
    try:
        run(requests, outputs, sys.stdin.fileno(), float(arguments[1]))
    finally:
        context.destroy(linger=0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
