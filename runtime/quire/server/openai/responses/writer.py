"""A response, item by item: the same code makes the events of a stream and the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from quire.outputs.parts import CallArguments, CallStart, Part, Reasoning, Text
from quire.request import FinishReason
from quire.server.answers.shapes import JSON, Step
from quire.server.ask import new_id
from quire.server.flight.work import Usage

_CUT = {FinishReason.LENGTH.value: "max_output_tokens", FinishReason.CONTENT_FILTER.value: "content_filter"}


class ResponseWriter:
    """head: what the response says of its request. Events come in order from `begin`, `step` for each step, `end`; `response` is what
    there is so far."""

    def __init__(self, head: JSON) -> None:
        self.response: JSON = {
            **head,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        self._sequence = 0
        self._reasoning_tokens = 0
        self._logprobs: list[JSON] = []
        self._open: JSON | None = None  # the last item, while more of it may come

    def begin(self) -> Iterator[JSON]:
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response=self._snapshot())

    def step(self, step: Step, num_tokens: int, logprobs: Sequence[JSON]) -> Iterator[JSON]:
        """logprobs: of the tokens of this step; they go with the next text."""
        if not step.parts or any(isinstance(part, Text) for part in step.parts):
            self._logprobs += logprobs  # of text, also where its last character is not whole yet
        for part in step.parts:
            yield from self._part(part)
        if self._open is not None and self._open["type"] == "reasoning":
            self._reasoning_tokens += num_tokens

    def end(self, reason: str, usage: Usage) -> Iterator[JSON]:
        cut = _CUT.get(reason)
        if not self.response["output"]:
            yield from self._opened(_message())
        yield from self._closed("incomplete" if cut else "completed")
        self.response["status"] = "incomplete" if cut else "completed"
        self.response["incomplete_details"] = {"reason": cut} if cut else None
        self.response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        }
        yield self._event(f"response.{self.response['status']}", response=self._snapshot())

    def failure(self, error: JSON) -> JSON:
        """The event that ends a stream where something failed. error: code, message, param and more."""
        return self._event("error", error=error, **{key: error[key] for key in ("code", "message", "param")})

    def _part(self, part: Part) -> Iterator[JSON]:
        match part:
            case Text():
                logprobs, self._logprobs = self._logprobs, []
                yield from self._ensure("message")
                self._content["text"] += part.text
                self._content["logprobs"] += logprobs
                yield self._inner("response.output_text.delta", delta=part.text, logprobs=logprobs)
            case Reasoning():
                yield from self._ensure("reasoning")
                self._content["text"] += part.text
                yield self._inner("response.reasoning_text.delta", delta=part.text)
            case CallStart():
                yield from self._closed("completed")
                yield from self._opened(_call(part))
            case CallArguments():
                assert self._open is not None
                self._open["arguments"] += part.text
                yield self._of_item("response.function_call_arguments.delta", delta=part.text)

    def _ensure(self, kind: str) -> Iterator[JSON]:
        """An item of this kind is open; another one is closed before."""
        if self._open is None or self._open["type"] != kind:
            yield from self._closed("completed")
            yield from self._opened(_message() if kind == "message" else _reasoning())

    def _opened(self, item: JSON) -> Iterator[JSON]:
        self._open = item
        self.response["output"].append(item)
        content = item.get("content")
        shown = {**item, "content": []} if content else dict(item)
        yield self._event("response.output_item.added", output_index=self._index, item=shown)
        if content:
            yield self._inner("response.content_part.added", part=dict(content[0]))

    def _closed(self, status: str) -> Iterator[JSON]:
        item = self._open
        if item is None:
            return
        item["status"] = status
        if item["type"] == "function_call":
            item["status"] = "completed" if _is_json(item["arguments"]) else "incomplete"
            yield self._of_item("response.function_call_arguments.done", arguments=item["arguments"], name=item["name"])
        else:
            [content] = item["content"]
            if item["type"] == "message":
                content["logprobs"] += self._logprobs
                self._logprobs = []
                yield self._inner("response.output_text.done", text=content["text"], logprobs=content["logprobs"])
            else:
                yield self._inner("response.reasoning_text.done", text=content["text"])
            yield self._inner("response.content_part.done", part=dict(content))
        yield self._event("response.output_item.done", output_index=self._index, item=dict(item))
        self._open = None

    @property
    def _content(self) -> JSON:
        """The text of the open item."""
        assert self._open is not None
        content: JSON = self._open["content"][0]
        return content

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _inner(self, kind: str, **fields: Any) -> JSON:
        return self._of_item(kind, content_index=0, **fields)

    def _of_item(self, kind: str, **fields: Any) -> JSON:
        assert self._open is not None
        return self._event(kind, item_id=self._open["id"], output_index=self._index, **fields)

    def _event(self, kind: str, **fields: Any) -> JSON:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return event

    def _snapshot(self) -> JSON:
        return {**self.response, "output": list(self.response["output"])}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _message() -> JSON:
    content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"type": "message", "id": new_id("msg"), "status": "in_progress", "role": "assistant", "content": [content]}


def _reasoning() -> JSON:
    content = {"type": "reasoning_text", "text": ""}
    return {"type": "reasoning", "id": new_id("rs"), "status": "in_progress", "summary": [], "content": [content]}


def _call(part: CallStart) -> JSON:
    return {
        "type": "function_call",
        "id": new_id("fc"),
        "status": "in_progress",
        "call_id": part.id,
        "name": part.name,
        "arguments": "",
    }
