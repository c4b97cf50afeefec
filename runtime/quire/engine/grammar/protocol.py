"""What engine, nursery and workers say to each other: msgpack frames on socket pairs, masks as raw bytes.

To the nursery: `Settings` once, then one byte with a file descriptor for each worker. To a worker: `Compile`, then `Step`s.
From a worker: `Compiled` or `Refused` (it ends after that), then for each step `Faults` and the masks of its rows in order,
`mask_words(vocab_size)` little-endian 32-bit words a row.
"""

from __future__ import annotations

import msgspec

from quire.structured import Kind


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a grammar may cost. CPU seconds are the worker's own and enforced by the kernel; wall seconds are how long the
    engine waits for a worker that gets no CPU."""

    compile_cpu_s: float = 5.0
    compile_wall_s: float = 300.0
    mask_cpu_s: float = 0.5
    """One token of one sequence."""
    mask_wall_s: float = 10.0
    """All masks of one step."""
    mean_cpu_s: float = 0.02
    """A token on average; a sequence may be `mask_cpu_s` ahead of it."""
    memory_bytes: int = 1 << 30
    num_compiling: int = 2
    num_grammars: int = 64
    """Compiled grammars that are kept for later requests."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """tokenizer: as `--tokenizer` or the model; eos_token_ids: the model's, beside those of the tokenizer."""

    tokenizer: str
    revision: str
    vocab_size: int
    eos_token_ids: list[int]
    limits: Limits


class Compile(msgspec.Struct, frozen=True):
    kind: Kind
    spec: str


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """eos_token_ids: the tokens that may follow where the text may end."""

    eos_token_ids: list[int]
    warnings: list[str]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is no grammar. lasting: that will not change, so the answer may be remembered."""

    message: str
    lasting: bool = True


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """A row: tokens[known:] of what the sequence `session` has generated; the worker was told those before."""

    session: int
    known: int
    new: list[int]


class Step(msgspec.Struct, frozen=True, array_like=True):
    """Rows that want a mask; ended: sessions that will not come again."""

    rows: list[Tokens]
    ended: list[int]


class Faults(msgspec.Struct, frozen=True):
    """Why a row has no mask, by its place in the step."""

    by_place: dict[int, str]


def mask_words(vocab_size: int) -> int:
    """32-bit words of one mask."""
    return (vocab_size + 31) // 32


encoder = msgspec.msgpack.Encoder()
settings_decoder = msgspec.msgpack.Decoder(Settings)
compile_decoder = msgspec.msgpack.Decoder(Compile)
step_decoder = msgspec.msgpack.Decoder(Step)
verdict_decoder = msgspec.msgpack.Decoder(Compiled | Refused)
faults_decoder = msgspec.msgpack.Decoder(Faults)
