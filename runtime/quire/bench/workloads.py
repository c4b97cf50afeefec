"""The work: prompts and how many tokens to answer each with. The same arguments give the same work, on every machine. Pure.

Names are those of docs/performance.md: W1 throughput, W2 latency, W3 prefix, W4 serve. Answers are greedy and go on past end
tokens, so that every engine generates exactly the tokens that are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from quire.bench.corpus import SENTENCES
from quire.errors import ConfigError

Encode = Callable[[str], list[int]]
"""A text to token ids, nothing added."""

LENGTHS_SEED = 1234
PREFIX_SEED = 77
WARM_UP_SEED = 99


@dataclass(frozen=True, slots=True)
class Span:
    """Lengths in tokens, both ends included; a draw is uniform."""

    least: int
    most: int

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True, slots=True)
class Work:
    """One request: token ids of the prompt, and tokens to generate."""

    prompt: list[int]
    num_tokens: int


def span(text: str, *, flag: str) -> Span:
    """`16:512` or `128`; raises ConfigError."""
    parts = text.split(":")
    if len(parts) > 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise ConfigError(f"{flag} must be a number of tokens or LEAST:MOST, as 16:512, got {text!r}")
    least, most = int(parts[0]), int(parts[-1])
    if not 1 <= least <= most:
        raise ConfigError(f"{flag} must be at least 1 token, and LEAST at most MOST, got {text!r}")
    return Span(least, most)


def mixed(
    encode: Encode, count: int, prompt_tokens: Span, output_tokens: Span, *, cap: int | None = None
) -> list[Work]:
    """W1 and W4: lengths drawn uniformly, prompts that begin differently. cap: answers end after so many tokens at the latest.

    With 64 requests of 16:512 and 16:256 tokens these are 13 788 prompt tokens and 8 632 generated ones, 3 627 with cap 64.
    """
    rng = random.Random(LENGTHS_SEED)
    lengths = [
        (rng.randint(prompt_tokens.least, prompt_tokens.most), rng.randint(output_tokens.least, output_tokens.most))
        for _ in range(count)
    ]
    return [
        Work(text(encode, prompt, LENGTHS_SEED + 1 + index), output if cap is None else min(output, cap))
        for index, (prompt, output) in enumerate(lengths)
    ]


def single(encode: Encode, prompt_tokens: int, num_tokens: int, *, repeat: int) -> Work:
    """W2: one request; another prompt for each repeat, so that none is cached."""
    return Work(text(encode, prompt_tokens, 100 + repeat), num_tokens)


def shared_prefix(encode: Encode, count: int, *, prefix: int, suffix: int, num_tokens: int) -> list[Work]:
    """W3: prompts that begin with the same `prefix` tokens and end with `suffix` tokens of their own."""
    head = text(encode, prefix, PREFIX_SEED)
    return [Work(head + text(encode, suffix, PREFIX_SEED + 1 + index), num_tokens) for index in range(count)]


def warm_up(encode: Encode, count: int = 2) -> list[Work]:
    """Short work that makes everything initialise itself; nothing of it is counted."""
    return [Work(text(encode, 16, WARM_UP_SEED + index), 8) for index in range(count)]


def text(encode: Encode, length: int, seed: int) -> list[int]:
    """`length` token ids of shuffled sentences behind the seed, which makes texts differ from their first block of KV on."""
    stream = _stream(encode, seed)
    return [next(stream) for _ in range(length)]


def _stream(encode: Encode, seed: int) -> Iterator[int]:
    rng = random.Random(seed)
    yield from encode(f"{seed}. ")
    while True:
        found = False
        for sentence in rng.sample(SENTENCES, len(SENTENCES)):
            for token in encode(sentence + " "):
                found = True
                yield token
        if not found:
            raise ConfigError("the tokenizer makes no tokens of English text; benchmarks need one that does")
