"""What the runner hands back for a step, and the scheduler records."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.request import TokenLogprobs

NO_TOKEN = -1
"""In place of a token for a sequence that cannot go on: its logits are not finite, or no token is allowed."""
NOT_YET = -2
"""In place of a token for a sequence whose logits cannot be judged yet: the next step computes them again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a sequence cannot go on, in a sentence. param: the field of the request that is at fault; None where none is. passing: it
    is nobody's fault, and the same request may well succeed now."""

    message: str
    param: str | None = None
    passing: bool = False


LATER = Fault("not yet")
"""Of a logits processor, for a row that it is not done with: that row gets NOT_YET. Not for ever: that is the processor's promise."""
NOT_FINITE = Fault("the model computed no finite logits for this request; the weights or the type overflow")


@dataclass(slots=True)
class Extras:
    """What only some requests ask for, or have. errors: why a token is NO_TOKEN, by its place among the tokens; where it is
    missing the logits were not finite. logprobs: also by that place. prompt_logprobs: those that a step has made, by the place of
    its entry in the plan, in the order of the prompt. pooled: by that place too, for prompts that become vectors: float32 in
    little-endian order, or why there is none; None where more of the prompt is to come."""

    errors: dict[int, Fault] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    pooled: dict[int, bytes | Fault | None] = field(default_factory=dict)


@dataclass(slots=True)
class StepResult:
    """tokens: one for each entry of the plan that samples, in order; NO_TOKEN where that failed."""

    tokens: list[int] = field(default_factory=list)
    extras: Extras = field(default_factory=Extras)
