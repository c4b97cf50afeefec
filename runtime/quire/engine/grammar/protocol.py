"""What engine, nursery and workers say to each other: msgpack frames on socket pairs, masks as raw bytes.

To the nursery: `Settings` once, then one byte with a file descriptor for each worker. From it: `ENDING` for each worker that did
not end by itself. To a worker: `Compile`, then `Step`s. From a worker: `Born`, `Compiled` or `Refused` (it ends after that), then for each
step `Faults` and the masks of its rows in order, `mask_words(vocab_size)` little-endian 32-bit words a row.
"""

from __future__ import annotations

import struct

import msgspec

from quire.structured import Kind, Reason

PATIENCE = 60
OWN_BYTES = 4 << 20
"""A worker writes to so much of what it inherits, and has it for itself then (3 to 5 MiB were measured)."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a grammar may cost. CPU seconds are the worker's own and enforced by the kernel; where it gets less than a
    PATIENCE-th of a CPU, the engine gives up."""

    compile_cpu_s: float
    mask_cpu_s: float
    """One token of one sequence."""
    mean_cpu_s: float
    """A token on average; a sequence may be `mask_cpu_s` ahead of it."""
    memory_bytes: int
    """One worker, beside what all of them share: `OWN_BYTES`, and what it takes more than it inherited."""
    total_bytes: int
    """All workers: what they hold, and `memory_bytes` for each that compiles. 0: there can be none."""
    num_compiling: int
    num_grammars: int
    """Workers that live at once: those of requests, and those kept for later ones."""
    spec_bytes: int

    @property
    def compile_wall_s(self) -> float:
        return PATIENCE * self.compile_cpu_s

    @property
    def mask_wall_s(self) -> float:
        """All masks of one step."""
        return PATIENCE * self.mask_cpu_s


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


class Born(msgspec.Struct, frozen=True, tag="born"):
    """It reads what it is told, however long that is."""


class Compiled(msgspec.Struct, frozen=True, tag="compiled"):
    """eos_token_ids: the tokens that may follow where the text may end. memory_bytes: what the worker holds."""

    eos_token_ids: list[int]
    warnings: list[str]
    memory_bytes: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """Why there is no grammar."""

    message: str
    reason: Reason


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
    """Why a row has no mask, by its place in the step. memory_bytes: what the worker holds."""

    by_place: dict[int, str]
    memory_bytes: int


def mask_words(vocab_size: int) -> int:
    """32-bit words of one mask."""
    return (vocab_size + 31) // 32


ENDING = struct.Struct("<Ii")
"""The number of a worker, counted from 1 as they were asked for, and its exit code; negative: the signal that ended it."""
OUT_OF_MEMORY, CRASHED, NOT_BORN = 3, 4, 5
"""Exit codes: the grammar needs more memory than it may; the library failed on it; there was no process for it."""

encoder = msgspec.msgpack.Encoder()
settings_decoder = msgspec.msgpack.Decoder(Settings)
compile_decoder = msgspec.msgpack.Decoder(Compile)
step_decoder = msgspec.msgpack.Decoder(Step)
verdict_decoder = msgspec.msgpack.Decoder(Born | Compiled | Refused)
faults_decoder = msgspec.msgpack.Decoder(Faults)
