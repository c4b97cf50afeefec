"""Log probabilities of a prompt's own tokens: which rows of a step they need, and a few rows of logits at a time.

A chunk gives those of its positions that are not known yet, so a prompt may come in any chunks and be preempted in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quire.engine.plan import StepPlan
from quire.engine.sampling.logprobs import ROWS, token_logprobs
from quire.models.executor import Executor
from quire.request import TokenLogprobs


@dataclass(frozen=True, slots=True)
class PromptSpan:
    """Rows of the flattened batch, from `row` on, whose logits judge `tokens`. entry: the place in the plan."""

    entry: int
    row: int
    tokens: list[int]
    top: int


def prompt_spans(plan: StepPlan) -> list[PromptSpan]:
    """What the step's requests want to know of their prompts."""
    spans: list[PromptSpan] = []
    row = 0
    for number, entry in enumerate(plan.scheduled):
        sequence = entry.sequence
        top = sequence.params.prompt_logprobs
        if top is not None and sequence.missing_prompt_logprobs:
            first = max(entry.start, len(sequence.prompt_logprobs))
            last = min(entry.start + entry.num_tokens, sequence.num_prompt - 1)
            if first < last:
                spans.append(PromptSpan(number, row + first - entry.start, sequence.tokens[first + 1 : last + 1], top))
        row += entry.num_tokens
    return spans


def prompt_logprobs(executor: Executor, hidden: Tensor, spans: list[PromptSpan]) -> dict[int, list[TokenLogprobs]]:
    """For hidden states [P, H] of the rows of all spans, in order: by place in the plan."""
    tokens = [token for span in spans for token in span.tokens]
    tops = [span.top for span in spans for _ in span.tokens]
    found: list[TokenLogprobs] = []
    for start in range(0, len(tokens), ROWS):
        end = start + ROWS
        found += token_logprobs(executor.logits(hidden[start:end]), tokens[start:end], tops[start:end])
    rest = iter(found)
    return {span.entry: [next(rest) for _ in span.tokens] for span in spans}
