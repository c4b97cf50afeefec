"""What a start asks for, in bytes: of activations, of blocks, of position tables. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quire.config import EngineConfig, parse_bytes
from quire.engine.sampling.logprobs import ROWS
from quire.engine.sampling.restrict import SORTED_ROWS
from quire.models.executor import Footprint, ModelFacts

USEFUL_LEN = 512
"""Nothing is advised that leaves a request fewer tokens, where the model, and the length or pool that was asked for, have more."""


@dataclass(frozen=True)
class Need:
    """What a start asks for. footprint: of the model in the numbers that were chosen; kv_dtype_bytes: of a number of the KV cache."""

    facts: ModelFacts
    config: EngineConfig
    footprint: Footprint
    kv_dtype_bytes: int

    @property
    def activation_bytes(self) -> int:
        """The widest moment of a step of the full budget, and sampling."""
        footprint = self.footprint
        step = self.config.max_num_batched_tokens * footprint.activations_per_token + footprint.activations_per_step
        return step + sampling_bytes(self.facts, self.config, footprint.logit)

    @property
    def block_bytes(self) -> int:
        """Keys and values of a block."""
        return self.facts.kv_elements_per_token() * self.config.block_size * self.kv_dtype_bytes

    @property
    def position_bytes(self) -> int:
        """Cosines and sines of a position."""
        return self.facts.table_elements_per_position() * 4

    @property
    def wanted_len(self) -> int:
        """Tokens that a sequence may have, if the pool holds them."""
        return min(self.config.max_model_len or self.facts.max_model_len, self.facts.max_model_len)

    @property
    def said_blocks(self) -> int | None:
        """Blocks of the pool, where its size was said."""
        if self.config.num_blocks is not None:
            return self.config.num_blocks
        if self.config.kv_cache_memory is not None:
            return parse_bytes(self.config.kv_cache_memory, flag="--kv-cache-memory") // self.block_bytes
        return None

    @property
    def least_blocks(self) -> int:
        """With fewer it does not start."""
        if self.config.max_model_len is not None:
            return self.said_blocks or self.blocks_of(self.wanted_len)
        return self.said_blocks or 1

    @property
    def useful_len(self) -> int:
        """With fewer tokens a start is not worth advising."""
        useful = min(USEFUL_LEN, self.wanted_len)
        return min(useful, self.said_blocks * self.config.block_size) if self.said_blocks else useful

    def blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.config.block_size)

    def table_bytes(self, num_blocks: int) -> int:
        """Position tables of the longest sequence that so many blocks hold."""
        return min(num_blocks * self.config.block_size, self.wanted_len) * self.position_bytes

    def pool_bytes(self, num_blocks: int) -> int:
        """A pool, and the position tables with it."""
        return num_blocks * self.block_bytes + self.table_bytes(num_blocks)

    def blocks_in(self, room: int, spare: int) -> int:
        """The most blocks whose `pool_bytes` are at most room (each with tables of its own, or all with those of the wanted length) and
        whose `table_bytes` are at most spare."""
        block_tables, all_tables = self.config.block_size * self.position_bytes, self.wanted_len * self.position_bytes
        fitting = max(room // (self.block_bytes + block_tables), (room - all_tables) // self.block_bytes, 0)
        return fitting if all_tables <= spare else min(fitting, max(spare // block_tables, 0))


def sampling_bytes(facts: ModelFacts, config: EngineConfig, logit_bytes: int) -> int:
    """Logits, and what is made of them: up to four float32 copies, and eight words for each of the few rows that are sorted.

    Rows are as many as sequences, whatever the budget (siblings draw from one row of it), or those of a prompt whose log
    probabilities are wanted.
    """
    rows = max(config.max_num_seqs, ROWS)
    return facts.vocab_size * (rows * (logit_bytes + 4 * 4) + SORTED_ROWS * 8 * 4)
