"""A message, block by block: the same code makes the events of a stream and the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from quire.outputs.parts import CallArguments, CallStart, Part, Reasoning, Text
from quire.request import FinishReason
from quire.server.answers.shapes import JSON, TOOL_CALLS, Step
from quire.server.ask import new_id
from quire.server.flight.work import Usage

_REASONS = {
    FinishReason.STOP.value: "end_turn",
    FinishReason.LENGTH.value: "max_tokens",
    FinishReason.CONTENT_FILTER.value: "refusal",
    TOOL_CALLS: "tool_use",
}


class MessageWriter:
    """Events come in order from `begin`, `step` for each step, `end`; `message` is what there is so far."""

    def __init__(self, model: str) -> None:
        self.message: JSON = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": None,
        }
        self._arguments = ""
        self._open = False

    def begin(self, usage: Usage) -> Iterator[JSON]:
        self.message["usage"] = usage_of(usage)
        yield {"type": "message_start", "message": {**self.message, "content": []}}

    def step(self, step: Step) -> Iterator[JSON]:
        for part in step.parts:
            yield from self._part(part)

    def end(self, reason: str, stop_sequence: str | None, usage: Usage) -> Iterator[JSON]:
        if not self.message["content"]:
            yield from self._opened({"type": "text", "text": ""})
        yield from self._closed()
        told = _REASONS.get(reason, reason)
        if told == "end_turn" and stop_sequence is not None:
            told = "stop_sequence"
        ended = {"stop_reason": told, "stop_sequence": stop_sequence if told == "stop_sequence" else None}
        self.message |= {**ended, "usage": usage_of(usage)}
        yield {"type": "message_delta", "delta": ended, "usage": usage_of(usage)}
        yield {"type": "message_stop"}

    def _part(self, part: Part) -> Iterator[JSON]:
        match part:
            case Text():
                yield from self._ensure("text", {"type": "text", "text": ""})
                self._block["text"] += part.text
                yield self._delta(type="text_delta", text=part.text)
            case Reasoning():
                yield from self._ensure("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                self._block["thinking"] += part.text
                yield self._delta(type="thinking_delta", thinking=part.text)
            case CallStart():
                yield from self._closed()
                yield from self._opened({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
                self._arguments = ""
            case CallArguments():
                self._arguments += part.text
                yield self._delta(type="input_json_delta", partial_json=part.text)

    def _ensure(self, kind: str, block: JSON) -> Iterator[JSON]:
        if not self._open or self._block["type"] != kind:
            yield from self._closed()
            yield from self._opened(block)

    def _opened(self, block: JSON) -> Iterator[JSON]:
        self.message["content"].append(block)
        self._open = True
        yield {"type": "content_block_start", "index": self._index, "content_block": dict(block)}

    def _closed(self) -> Iterator[JSON]:
        if not self._open:
            return
        self._open = False
        if self._block["type"] == "tool_use":
            self._block["input"] = _object(self._arguments)
        yield {"type": "content_block_stop", "index": self._index}

    @property
    def _index(self) -> int:
        return len(self.message["content"]) - 1

    @property
    def _block(self) -> JSON:
        block: JSON = self.message["content"][-1]
        return block

    def _delta(self, **delta: Any) -> JSON:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def usage_of(usage: Usage) -> JSON:
    """Anthropic counts tokens that were found in the prefix cache apart."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


def _object(arguments: str) -> Any:
    """Arguments as the object they are; of a call that was cut, nothing (its deltas have the beginning)."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}
