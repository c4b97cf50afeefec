"""/v1/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.outputs.choice import Choice
from quire.outputs.parts import Message, Part, Text
from quire.request import TokenLogprobs
from quire.server.answers import logprobs
from quire.server.answers.shapes import JSON
from quire.server.ask import completion_ask, head, respond
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.openai.bodies import CompletionBody
from quire.server.tasks import GENERATE
from quire.text.pieces import Pieces


@dataclass(frozen=True)
class CompletionShape:
    """Answers of /v1/completions. echoes: the texts of the prompts, where answers begin with them."""

    head: JSON
    body: CompletionBody
    echoes: Sequence[str] | None = None

    @property
    def chunk_head(self) -> JSON:
        return self.head

    @property
    def tells_end(self) -> bool:
        # Who scores a text takes the entries of generated tokens off again, by their number.
        return self.echoes is not None

    def choice(self, index: int, message: Message, reason: str, logprobs: JSON | None) -> JSON:
        return {"index": index, "text": message.text, "logprobs": logprobs, "finish_reason": reason}

    def opening(self, choice: Choice) -> JSON | None:
        if self.echoes is None:
            return None
        return self.chunk(choice.index, Text(self.echoes[choice.prompt_index]), None, None)

    def chunk(self, index: int, part: Part | None, reason: str | None, logprobs: JSON | None) -> JSON:
        text = part.text if isinstance(part, Text) else ""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, entries: Sequence[TokenLogprobs], pieces: Pieces, offset: int) -> JSON:
        return logprobs.completion(entries, pieces, offset)

    def with_prompt(self, answer: JSON, prompts: Sequence[Choice]) -> None:
        for choice, first in zip(answer["choices"], prompts, strict=True):
            if self.body.prompt_logprobs is not None:
                entries = logprobs.likeliest(first.prompt_logprobs or (), self.body.prompt_logprobs)
                choice["prompt_logprobs"] = logprobs.prompt(entries, first.text.pieces)
            if self.echoes is not None:
                self._with_echo(choice, first, self.echoes[first.prompt_index])
        if self.body.scores:
            usage = answer["usage"]
            usage |= {"completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}

    def _with_echo(self, choice: JSON, first: Choice, text: str) -> None:
        said, told = ("", None) if self.body.scores else (choice["text"], choice["logprobs"])
        choice["text"] = text + said
        if self.body.logprobs is None:
            return
        entries = logprobs.likeliest(first.prompt_logprobs or (), self.body.logprobs)
        echoed = logprobs.echoed(first.prompt_token_ids, entries, first.text.pieces, len(text))
        shifted = {**told, "text_offset": [len(text) + at for at in told["text_offset"]]} if told else {}
        choice["logprobs"] = {key: values + shifted.get(key, []) for key, values in echoed.items()}


def router(frontend: Frontend) -> APIRouter:
    """The route."""
    routes = APIRouter()

    @post(routes, "/v1/completions", CompletionBody)
    async def completions(request: Request, body: CompletionBody) -> Response:
        model = frontend.check_model(body.model, GENERATE)
        ask, prompts = await completion_ask(frontend, body)
        echoes = _echoes(frontend, body, prompts, ask.prompts) if body.echo else None
        shape = CompletionShape(head("cmpl", "text_completion", model), body, echoes)
        return await respond(request, frontend, body, ask, shape, include_usage=body.include_usage)

    return routes


def _echoes(
    frontend: Frontend, body: CompletionBody, whole: Sequence[list[int]], kept: Sequence[list[int]]
) -> list[str]:
    """The texts of prompts as they were sent; of token ids, and of prompts that were cut, what the tokens say."""
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    texts = [one for one in given if isinstance(one, str)]
    return [
        texts[place] if texts and ids == before else frontend.tokenizer.decode(ids, skip_special_tokens=False)
        for place, (before, ids) in enumerate(zip(whole, kept, strict=True))
    ]
