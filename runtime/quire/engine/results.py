"""What the runner hands back for a step, and the scheduler records."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.request import TokenLogprobs

NO_TOKEN = -1
"""In place of a token for a sequence that cannot go on: its logits are not finite, or no token is allowed."""
NOT_FINITE = "the model computed no finite logits for this request; the weights or the type overflow"


@dataclass(slots=True)
class Extras:
    """What only some requests ask for, or have. errors: why a token is NO_TOKEN, by its place among the tokens; where it is
    missing the logits were not finite. logprobs: also by that place. prompt_logprobs: those that a step has made, by the place of
    its entry in the plan, in the order of the prompt."""

    errors: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """tokens: one for each entry of the plan that samples, in order; NO_TOKEN where that failed."""

    tokens: list[int] = field(default_factory=list)
    extras: Extras = field(default_factory=Extras)
