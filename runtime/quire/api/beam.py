"""Beam search, the decisions: which continuations of one prompt live on, which have ended, and when nothing can get better.

The canonical algorithm, as transformers' `generate(num_beams=…, early_stopping="never")` runs it: of all continuations of the
live beams the likeliest are looked at, enough of them that `beam_width` remain though every end token be among them; one that
ends counts if it is among the first `beam_width`; a finished beam's score is its log probability / (generated tokens, the end
token included) ** length_penalty. Pure: no engine, no text.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from quire.errors import RequestError
from quire.request import FinishReason
from quire.sampling_params import MAX_LOGPROBS


@dataclass
class BeamSearchParams:
    """How wide and how far to search.

    beam_width: beams that live, and answers that come back. max_tokens: generated tokens of a beam at most. ignore_eos: end tokens
    are like others. length_penalty: exponent of the length that a beam's log probability is divided by; above 0 favours long
    answers. temperature: 0 or 1, as the search follows the model's own probabilities. include_stop_str_in_output: tokens and
    text keep the end token. Raises RequestError.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False

    def __post_init__(self) -> None:
        checks = (
            (
                "beam_width",
                f"an integer between 1 and {MAX_LOGPROBS // 2}",
                _is_int(self.beam_width, MAX_LOGPROBS // 2),
            ),
            ("max_tokens", "an integer of at least 1", _is_int(self.max_tokens, math.inf)),
            ("temperature", "0 or 1: the search follows the model's own probabilities", self.temperature in (0, 1)),
            ("length_penalty", "a finite number", math.isfinite(self.length_penalty)),
        )
        for name, bound, holds in checks:
            if not holds:
                raise RequestError(f"{name} must be {bound}, got {getattr(self, name)!r}", param=name)


@dataclass
class BeamSearchSequence:
    """One beam. tokens: the prompt's and the generated ones, the end token only with include_stop_str_in_output. logprobs: the
    likeliest tokens at each generated place. cum_logprob: log probability of what was generated. text: of all tokens.
    finish_reason: `stop` or `length`. stop_reason: the end token."""

    tokens: list[int]
    logprobs: list[Mapping[int, Any]] = field(default_factory=list)
    cum_logprob: float = 0.0
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass
class BeamSearchOutput:
    """The best beams of a prompt, best first."""

    sequences: list[BeamSearchSequence]


class BeamSearch:
    """The search for one prompt. `beams` are to be continued; `advance` takes the next tokens' probabilities."""

    def __init__(
        self, prompt: list[int], params: BeamSearchParams, end_ids: Collection[int], *, max_tokens: int
    ) -> None:
        """end_ids: tokens that end a beam. max_tokens: at most `params.max_tokens`."""
        self.beams = [BeamSearchSequence(tokens=list(prompt))]
        self._finished: list[tuple[float, BeamSearchSequence]] = []
        self._params = params
        self._ends = frozenset() if params.ignore_eos else frozenset(end_ids)
        self._num_prompt = len(prompt)
        self._max_tokens = max_tokens

    @property
    def num_candidates(self) -> int:
        """Likeliest tokens of each beam that `advance` needs: so many that `beam_width` of them end nothing."""
        return max(2, 1 + len(self._ends)) * self._params.beam_width

    @property
    def done(self) -> bool:
        """Nothing that is still alive can be among the best."""
        return not self.beams

    def advance(self, likeliest: Sequence[Mapping[int, Any]]) -> None:
        """One step. likeliest: for each beam its likeliest next tokens, id to an object with `logprob`."""
        width, length = self._params.beam_width, len(self.beams[0].tokens) + 1 - self._num_prompt
        candidates = [
            (beam.cum_logprob + entry.logprob, place, token)
            for place, (beam, entries) in enumerate(zip(self.beams, likeliest, strict=True))
            for token, entry in entries.items()
        ]
        candidates.sort(key=lambda one: (-one[0], one[1], one[2]))
        alive: list[BeamSearchSequence] = []
        for rank, (score, place, token) in enumerate(candidates[: self.num_candidates]):
            ends, last = token in self._ends, length >= self._max_tokens
            if not ends and not last:
                alive.append(self._continued(place, token, score, likeliest[place]))
                if len(alive) == width:
                    break
            elif rank < width:
                beam = self._continued(place, token, score, likeliest[place])
                beam.finish_reason = (FinishReason.STOP if ends else FinishReason.LENGTH).value
                if ends:
                    beam.stop_reason = token
                    if not self._params.include_stop_str_in_output:
                        del beam.tokens[-1]
                self._finished.append((self._score(score, length), beam))
        self._finished.sort(key=lambda one: -one[0])
        del self._finished[width:]
        self.beams = alive if self._can_improve(alive, length) else []

    def best(self) -> list[BeamSearchSequence]:
        """The finished beams, best first."""
        return [beam for _, beam in self._finished]

    def _continued(self, place: int, token: int, score: float, entries: Mapping[int, Any]) -> BeamSearchSequence:
        parent = self.beams[place]
        return BeamSearchSequence([*parent.tokens, token], [*parent.logprobs, entries], score)

    def _can_improve(self, alive: Sequence[BeamSearchSequence], length: int) -> bool:
        if len(self._finished) < self._params.beam_width or not alive:
            return bool(alive)
        longest = self._max_tokens if self._params.length_penalty > 0 else length
        return self._score(alive[0].cum_logprob, longest) > self._finished[-1][0]

    def _score(self, log_probability: float, length: int) -> float:
        return log_probability / float(length**self._params.length_penalty)


def _is_int(value: object, most: float) -> bool:
    return type(value) is int and 1 <= value <= most
