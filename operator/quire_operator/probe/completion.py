"""A completion of one token through the router: the proof behind `Ready`.

It runs beside the reconcile loop, which only asks how it stands. Attempts follow each other with growing pauses, at
most 15 seconds apart, for as long as the answer is asked for; the reason of the last failure is always at hand.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from quire_operator.spec import Key
from quire_operator.status import Verification

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 30.0
PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
TELL_AFTER = 4
"""Failures in a row before the condition says so: the router needs a moment to learn of a new endpoint."""


@dataclass(frozen=True)
class _Question:
    """Something that changes when a new proof is needed. `model` is `namespace/name`, which the router always knows."""

    uid: str
    generation: int
    revision: str
    model: str


@dataclass
class _Attempt:
    question: _Question
    answer: Verification
    task: asyncio.Task[None] | None = None


class Verifier:
    """`changed(key)` is called when the answer for `key` is another one."""

    def __init__(self, router_url: str, *, changed: Callable[[Key], None]) -> None:
        self._url = f"{router_url}/v1/completions"
        self._router = router_url
        self._changed = changed
        self._attempts: dict[Key, _Attempt] = {}

    def ask(self, key: Key, *, uid: str, generation: int, revision: str, model: str) -> Verification:
        """How the proof stands; the first call for a question starts it."""
        question = _Question(uid, generation, revision, model)
        known = self._attempts.get(key)
        if known is None or known.question != question:
            self.forget(key)
            known = _Attempt(question, Verification("Pending"))
            known.task = asyncio.create_task(self._prove(key, known), name=f"verify {key}")
            self._attempts[key] = known
        return known.answer

    def forget(self, key: Key) -> None:
        """Stop trying; the next `ask` starts anew."""
        known = self._attempts.pop(key, None)
        if known is not None and known.task is not None:
            known.task.cancel()

    async def close(self) -> None:
        tasks = [attempt.task for attempt in self._attempts.values() if attempt.task is not None]
        for key in list(self._attempts):
            self.forget(key)
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _prove(self, key: Key, attempt: _Attempt) -> None:
        failures = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ATTEMPT_TIMEOUT_S)) as session:
            while True:
                answer = await self._answer(session, attempt.question.model)
                if answer.state == "Failed":
                    failures += 1
                    log.info("%s: no completion through the router yet (%s)", key, answer.message)
                if answer.state == "Passed" or failures >= TELL_AFTER:
                    if answer != attempt.answer:
                        attempt.answer = answer
                        self._changed(key)
                    if answer.state == "Passed":
                        return
                await asyncio.sleep(PAUSES_S[min(failures - 1, len(PAUSES_S) - 1)])

    async def _answer(self, session: aiohttp.ClientSession, model: str) -> Verification:
        """A fault of ours is told as a failure too: a task that died of it would leave the condition at `Verifying` for ever."""
        try:
            return await self._try(session, model)
        except Exception as error:
            log.exception("the completion for model %r failed in an unexpected way", model)
            return Verification(
                "Failed", "CompletionFailed", f"the proof itself failed: {str(error) or type(error).__name__}"
            )

    async def _try(self, session: aiohttp.ClientSession, model: str) -> Verification:
        body = {"model": model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        try:
            async with session.post(self._url, json=body) as response:
                text = await response.text(encoding="utf-8", errors="replace")
                if response.status == 200:
                    return _judge(text)
                detail = " ".join(text.split())[:200]
                return Verification(
                    "Failed",
                    "CompletionFailed",
                    f"the router answers {response.status} to a completion for model {model!r}: {detail}",
                )
        except TimeoutError:
            return Verification(
                "Failed", "CompletionTimedOut", f"no completion for model {model!r} within {ATTEMPT_TIMEOUT_S:.0f} s"
            )
        except (aiohttp.ClientError, OSError) as error:
            return Verification(
                "Failed", "RouterUnreachable", f"the router at {self._router} cannot be reached: {_cause(error)}"
            )


def _cause(error: Exception) -> str:
    """`Connection refused`, `Name or service not known`: the system's words, without the library's."""
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(inner, OSError) and inner.errno is not None and inner.errno > 0:
        return os.strerror(inner.errno)
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _judge(text: str) -> Verification:
    """A completion has one choice with a text; anything else came from something that is no engine."""
    try:
        choices = json.loads(text)["choices"]
        good = isinstance(choices[0]["text"], str)
    except (ValueError, LookupError, TypeError):
        good = False
    if good:
        return Verification("Passed")
    return Verification("Failed", "CompletionFailed", f"the router's answer is not a completion: {text[:200]!r}")
