"""A chat with a model through its OpenAI endpoint, token by token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx2

from quire_operator.errors import PluginError

TIMEOUT = httpx2.Timeout(600.0, connect=10.0)
"""The first token may have to wait for a pod that starts."""

Message = dict[str, str]


@dataclass(frozen=True)
class Piece:
    """Some text of an answer; `thought` is what the model says to itself."""

    text: str
    thought: bool = False


def connect(url: str, api_key: str | None) -> httpx2.Client:
    """url: the router, without a path. Environment proxies are left out on the way through a forwarded port."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx2.Client(
        base_url=url, headers=headers, timeout=TIMEOUT, trust_env=not url.startswith("http://127.0.0.1")
    )


@dataclass
class Talk:
    """What was said so far."""

    client: httpx2.Client
    model: str
    sampling: Mapping[str, Any]
    messages: list[Message] = field(default_factory=list)

    def ask(self, question: str, write: Callable[[Piece], None]) -> bool:
        """Stream the answer. Ctrl-C ends the answer alone: False then; what came so far stays part of the talk.

        Raises PluginError with the server's sentence; the question is then not part of the talk.
        """
        self.messages.append({"role": "user", "content": question})
        said: list[str] = []
        whole = True
        try:
            for piece in self._stream():
                write(piece)
                if not piece.thought:
                    said.append(piece.text)
        except KeyboardInterrupt:
            whole = False
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": "".join(said)})
        return whole

    def _stream(self) -> Iterator[Piece]:
        body = {"model": self.model, "messages": self.messages, "stream": True, **self.sampling}
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as answer:
                if answer.status_code != 200:
                    raise PluginError(refusal(answer.status_code, answer.read()))
                for line in answer.iter_lines():
                    yield from pieces(line)
        except httpx2.HTTPError as error:
            raise PluginError(f"the answer broke off: {str(error) or type(error).__name__}") from None


def pieces(line: str) -> Iterator[Piece]:
    """Of one line of the stream. Raises PluginError where it tells of an error."""
    data = line.removeprefix("data:").strip()
    if not line.startswith("data:") or data == "[DONE]":
        return
    event = json.loads(data)
    if "error" in event:
        raise PluginError(f"the answer ended with an error: {_sentence(event)}")
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content"):
            yield Piece(thought, thought=True)
        if text := delta.get("content"):
            yield Piece(text)


def refusal(status: int, body: bytes) -> str:
    """What the router or the engine said, and what would help."""
    try:
        said = _sentence(json.loads(body))
    except ValueError:
        said = body.decode(errors="replace").strip()[:200] or "nothing more"
    remedy = {401: "; --api-key or QUIRE_API_KEY gives a key", 404: "; kubectl llmd status says what is served"}.get(
        status, ""
    )
    if status >= 500:
        remedy = "; kubectl llmd status says how the pods are"
    return f"the router answered {status}: {said}{remedy}"


def _sentence(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
