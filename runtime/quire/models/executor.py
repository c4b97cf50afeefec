"""What every executor of a model offers the engine, and what goes in: the seam between steps and computation.

The engine reads `ModelFacts` to plan memory, allocates the `KVPool`, and calls `Executor.forward` once a step, then `logits`. Which executor it
has (torch modules from a description, a model of transformers) it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SMALL_CHUNK = 256
"""`Executor.small_chunk` where torch multiplies: on one core one of 128 costs a fifth more a token."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's input on the device. T tokens of S sequences, flattened, sequence after sequence.

    token_ids, positions, slot_mapping  [T] int64
    block_tables [S, M], query_start [S+1], context_lens [S]  int32, as `ops.paged_attention` reads them
    logit_rows  [R] int64: rows of the flattened batch whose logits are wanted
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    logit_rows: Tensor


@dataclass(frozen=True, slots=True)
class KVPool:
    """Per layer, keys and values [num_blocks, block_size, kv_heads, head_size]."""

    keys: list[Tensor]
    values: list[Tensor]


class ModelFacts(Protocol):
    """What the engine must know of a model before its weights are here. Attributes are read-only."""

    @property
    def num_layers(self) -> int:
        """Layers that keep keys and values."""
        ...

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_size(self) -> int: ...

    @property
    def vocab_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def max_model_len(self) -> int:
        """Positions the model was made for."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def checkpoint_dtype(self) -> str:
        """Type of the stored weights, as torch calls it."""
        ...

    @property
    def quantization(self) -> str:
        """`none`, or how the stored weights are packed."""
        ...

    def kv_elements_per_token(self) -> int:
        """Numbers the KV cache holds for one token, over all layers, keys and values together."""
        ...

    def table_elements_per_position(self) -> int:
        """Float32 numbers kept for each position that is served, whatever the weights' type."""
        ...


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a loaded model: all weights, second copies included; the widest moment of a step, for one token of the batch,
    logits not counted; one logit; what is held beside the weights at most while they are read; and what a step takes at most
    whatever its tokens, on the threads that there are."""

    weights: int
    activations_per_token: int
    logit: int
    loading: int
    activations_per_step: int = 0


class Executor(Protocol):
    """A model with its weights on a device."""

    @property
    def name(self) -> str:
        """What computes, for `/metrics`."""
        ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of hidden states."""
        ...

    @property
    def batch_invariant(self) -> bool:
        """Whether it is made so that a sequence's results are the same bit for bit whatever else is in the batch."""
        ...

    @property
    def small_chunk(self) -> int:
        """Tokens of a prompt that are computed at little more a token than many more are: what decoding sequences wait for by
        default."""
        ...

    def forward(self, batch: Batch, kv: KVPool) -> Tensor:
        """Hidden states [R, H] of the rows asked for, after the last norm; writes the batch's keys and values.

        Keys and values of the whole batch are written before attention reads, layer by layer: sequences of one step may share
        blocks that are filled in that very step.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [R, vocab] of hidden states [R, H], float32 or in the model's type. Apart from `forward`, because the log probabilities of
        a prompt need them for every position and are made a few rows at a time."""
        ...


def allocate_kv_pool(
    facts: ModelFacts, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KVPool:
    """An uninitialised pool; no slot is read before it is written."""
    shape = (num_blocks, block_size, facts.num_kv_heads, facts.head_size)

    def pool() -> list[Tensor]:
        return [torch.empty(shape, dtype=dtype, device=device) for _ in range(facts.num_layers)]

    return KVPool(pool(), pool())
