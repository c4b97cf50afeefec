"""The pipeline: which rows pass which stages, and in what order. See the package."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from quire.engine.results import LATER, NO_TOKEN, NOT_YET, Extras, Fault, StepResult
from quire.engine.sampling.draw import draw, likeliest
from quire.engine.sampling.logprobs import token_logprobs
from quire.request import SamplingParams


class Row(Protocol):
    """What the pipeline reads of a sequence; `engine.sequence.Sequence` is one."""

    params: SamplingParams
    seed: int
    tokens: list[int]  # the prompt and everything generated
    num_prompt: int
    stop_ids: frozenset[int]
    scratch: dict[str, Any]  # what stages remember, each under its own key; see the package
    processors: tuple[int, ...] | None  # places of the processors it wants; None until the sampler has asked

    @property
    def num_generated(self) -> int:
        """Tokens generated so far: the position of the draw."""
        ...


class LogitsProcessor(Protocol):
    """One stage that changes logits; see the package."""

    def wants(self, params: SamplingParams) -> bool:
        """Whether requests with these parameters pass through it."""
        ...

    def apply(self, logits: Tensor, where: list[int], rows: list[Row]) -> dict[int, Fault]:
        """Change logits [N, V] float32 in place at rows `where`. What went wrong for which row, or LATER, by place in `rows`."""
        ...


@runtime_checkable
class ComputesAhead(Protocol):
    """A logits processor that can use the time of the forward pass."""

    def prepare(self, rows: list[Row]) -> None:
        """Called before the forward pass with the rows of the next `apply`, in their order."""
        ...


class Sampler:
    """One token for each row of logits.

    processors: in the order in which they apply.
    """

    def __init__(self, processors: Rows[LogitsProcessor] = ()) -> None:
        self._processors = tuple(processors)
        self._ahead = [(place, one) for place, one in enumerate(processors) if isinstance(one, ComputesAhead)]

    def prepare(self, rows: Rows[Row]) -> None:
        """Called before the forward pass whose logits of these rows the next call will get."""
        for place, processor in self._ahead:
            if own := [row for row in rows if place in self._wanted(row)]:
                processor.prepare(own)

    @torch.inference_mode()
    def __call__(self, logits: Tensor, rows: Rows[Row]) -> StepResult:
        """Token ids for logits [R, V], one per row; NO_TOKEN where the row's largest logit is not a finite number, or
        where a processor failed or left nothing to draw (then `extras.errors` says so); NOT_YET where one is not done."""
        chosen = likeliest(logits)
        extras = Extras()
        changed, wanting = self._wanting(rows)
        drawn = [i for i, row in enumerate(rows) if not row.params.greedy and not row.processors]
        parts = [(drawn, logits.index_select(0, _index(drawn, logits)).float())] if drawn else []
        if changed:
            own = logits.index_select(0, _index(changed, logits)).float()
            chosen[_index(changed, logits)] = self._process(own, changed, wanting, rows, chosen, extras)
            random = [place for place, i in enumerate(changed) if not rows[i].params.greedy]
            if random:
                part = own if len(random) == len(changed) else own.index_select(0, _index(random, logits))
                parts.append(([changed[place] for place in random], part))
        for places, part in parts:
            index = _index(places, logits)
            picked = draw(part, [rows[i] for i in places])
            chosen[index] = torch.where(chosen[index] < 0, chosen[index], picked)
        tokens: list[int] = chosen.tolist()
        self._add_logprobs(logits, tokens, rows, extras)
        return StepResult(tokens, extras)

    @staticmethod
    def _add_logprobs(logits: Tensor, tokens: list[int], rows: Rows[Row], extras: Extras) -> None:
        asked = [(i, top) for i, row in enumerate(rows) if (top := row.params.logprobs) is not None]
        asked = [(i, top) for i, top in asked if tokens[i] >= 0]
        if asked:
            places, tops = [i for i, _ in asked], [top for _, top in asked]
            own = logits if len(places) == len(rows) else logits.index_select(0, _index(places, logits))
            found = token_logprobs(own, [tokens[i] for i in places], tops)
            extras.logprobs = dict(zip(places, found, strict=True))

    def _wanted(self, row: Row) -> tuple[int, ...]:
        if row.processors is None:
            row.processors = tuple(p for p, one in enumerate(self._processors) if one.wants(row.params))
        return row.processors

    def _wanting(self, rows: Rows[Row]) -> tuple[list[int], dict[int, list[int]]]:
        """Rows that want any processor, and for each processor the places among these of those that want it."""
        changed: list[int] = []
        wanting: dict[int, list[int]] = {}
        for i, row in enumerate(rows):
            if processors := self._wanted(row):
                for processor in processors:
                    wanting.setdefault(processor, []).append(len(changed))
                changed.append(i)
        return changed, wanting

    def _process(
        self,
        own: Tensor,
        changed: list[int],
        wanting: dict[int, list[int]],
        rows: Rows[Row],
        chosen: Tensor,
        extras: Extras,
    ) -> Tensor:
        """Apply the processors to logits [N, V] of the rows `changed`; the likeliest tokens [N] after that."""
        faults: dict[int, Fault] = {}
        for processor in sorted(wanting):
            where = wanting[processor]
            found = self._processors[processor].apply(own, where, [rows[changed[place]] for place in where])
            for i, fault in found.items():
                faults.setdefault(where[i], fault)
        found_at = likeliest(own)
        finite = found_at != NO_TOKEN
        if not bool(finite.all()):
            sound = (
                chosen[_index(changed, own)] != NO_TOKEN
            )  # else the model is at fault, not what the request asked for
            for place in (~finite & sound).nonzero().flatten().tolist():
                if faults.get(place, LATER) is LATER:
                    faults[place] = nothing_allowed(rows[changed[place]].params)
        for place, fault in faults.items():
            if fault is LATER:
                found_at[place] = NOT_YET
                continue
            extras.errors[changed[place]] = fault
            found_at[place] = NO_TOKEN
        return torch.where(finite, found_at, NO_TOKEN)


def nothing_allowed(params: SamplingParams) -> Fault:
    """That no token is left to draw; the request's fault where a field of it forbids tokens."""
    output = params.structured_outputs
    asked = {
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": bool(params.bad_words_token_ids),
        "min_tokens": params.min_tokens > 0,
        "logit_bias": bool(params.logit_bias),
        "" if output is None else output.param: output is not None,
    }
    fields = [name for name, there in asked.items() if there]
    if not fields:
        return Fault("no token is allowed: a logits processor excludes all of them")
    verb = "exclude" if len(fields) > 1 else "excludes"
    return Fault(f"no token is allowed: {' and '.join(fields)} {verb} all of them", fields[-1])


def _index(rows: list[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)
