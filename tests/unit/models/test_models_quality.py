"""What rounding costs the embedded model: how far its next-token distributions go from those of the weights in bfloat16, on the text
of `quire bench perplexity`. Its perplexity says the same, but of so few tokens only to 0.2 % (docs/performance.md has the whole text's).

The file is 4 bits already: its blocks of 32 weights lie on the very grids that 4 bits have, and would be quantised again without
loss. `OffGrid` puts the channels of the residual stream, of every head and of every MLP in another order, the same on both sides:
the same function of the same weights, but those of one block now come from 32 grids.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import resources

import pytest
import torch
from torch import Tensor

from quire.models import bundled, calibration
from quire.models.checkpoint import GGUFCheckpoint
from quire.models.cpu_decoder import PlanBuilder
from quire.models.executor import Batch, Executor, allocate_kv_pool
from quire.models.loader import NativeModel, inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire.text import load_tokenizer
from quire_kernels import ops

pytestmark = pytest.mark.model

CPU = torch.device("cpu")
CONTEXT, BLOCK = 512, 16
TOKENS = 1024
STORED, INT8, INT4 = 0.004, 0.006, 0.05
"""Bounds of the divergence, half as much again as measured. With all inputs alike `int4` comes to more than twice its bound."""


@pytest.fixture(scope="module")
def model() -> Iterator[NativeModel]:
    threads = ops.num_threads()
    ops.set_num_threads(2)
    found = inspect(resolve("smollm2"))
    assert isinstance(found, NativeModel)
    yield found
    ops.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    text = resources.files("quire.bench").joinpath("time_machine.txt").read_text(encoding="utf-8")
    return load_tokenizer(bundled.pull("smollm2")).encode(text, add_special_tokens=False)[:TOKENS]


def distributions(executor: Executor, model: NativeModel, tokens: list[int], kv_dtype: torch.dtype) -> Tensor:
    """Log probabilities [N, vocab] of what follows each token, in chunks of CONTEXT."""
    pool = allocate_kv_pool(model.description, CONTEXT // BLOCK, BLOCK, kv_dtype, CPU)
    found = []
    for start in range(0, len(tokens), CONTEXT):
        chunk = torch.tensor(tokens[start : start + CONTEXT])
        at = torch.arange(len(chunk))
        batch = Batch(
            token_ids=chunk,
            positions=at,
            slot_mapping=at,
            block_tables=torch.arange(CONTEXT // BLOCK, dtype=torch.int32)[None],
            query_start=torch.tensor([0, len(chunk)], dtype=torch.int32),
            context_lens=torch.tensor([len(chunk)], dtype=torch.int32),
            logit_rows=at,
        )
        found.append(executor.logits(executor.forward(batch, pool)).log_softmax(dim=-1))
    return torch.cat(found)


def calibration_tokens() -> list[int]:
    return load_tokenizer(bundled.pull("smollm2")).encode(calibration.text(), add_special_tokens=True)


def apart(ours: Tensor, theirs: Tensor) -> float:
    """Mean Kullback-Leibler divergence in nats."""
    return float((theirs.exp() * (theirs - ours)).sum(dim=-1).mean())


class OffGrid(GGUFCheckpoint):
    """See the module."""

    def read(self, parameter: str, dtype: torch.dtype) -> Tensor:
        d, kind = self._description, parameter.rpartition(".")[2]
        values, hidden = super().read(parameter, dtype), shuffled("hidden", d.hidden_size)
        if kind in ("o", "down"):
            values = values[hidden]
        elif values.dim() == 1:
            return values[hidden]
        else:
            values = values[:, hidden]
        inner = shuffled(parameter.removesuffix(kind) + "inner", d.intermediate_size)
        within = shuffled(parameter.removesuffix(kind) + "head", d.head_size)
        match kind:
            case "gate" | "up":
                return values[inner]
            case "down":
                return values[:, inner]
            case "v":
                return values.unflatten(0, (d.num_kv_heads, -1))[:, within].flatten(0, 1)
            case "o":
                return values.unflatten(1, (d.num_heads, -1))[:, :, within].flatten(1)
        return values


def shuffled(name: str, count: int) -> Tensor:
    """A random order, the same for the same name."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(sum(name.encode())))


@pytest.fixture(scope="module")
def off_grid(model: NativeModel) -> PlanBuilder:
    assert model.gguf is not None
    plain_file = replace(model.description, quantization="none")
    return PlanBuilder(plain_file, OffGrid(model.gguf, model.description, model.names))


@pytest.fixture(scope="module")
def plain(model: NativeModel, tokens: list[int]) -> Tensor:
    """Of the file expanded to bfloat16."""
    return distributions(model.plan().load(Precision.of(torch.bfloat16), CONTEXT), model, tokens, torch.bfloat16)


def test_the_file_as_it_is_stored(model: NativeModel, tokens: list[int], plain: Tensor) -> None:
    stored = distributions(model.plan().load(model.plan().precision(), CONTEXT), model, tokens, torch.bfloat16)
    assert 0 < apart(stored, plain) < STORED


@pytest.mark.parametrize(("quantization", "bound"), [("int8", INT8), ("int4", INT4)])
def test_float_weights_that_are_quantised_as_they_are_loaded(
    off_grid: PlanBuilder, model: NativeModel, tokens: list[int], plain: Tensor, quantization: str, bound: float
) -> None:
    executor = off_grid.load(off_grid.precision("bfloat16", quantization), CONTEXT, calibration_tokens)
    assert 0 < apart(distributions(executor, model, tokens, torch.bfloat16), plain) < bound


def test_off_the_grid_it_is_the_same_model(off_grid: PlanBuilder, model: NativeModel, tokens: list[int]) -> None:
    """Else the test above compares apples with pears."""
    exact, moved = (
        distributions(one.load(Precision.of(torch.float32), CONTEXT), model, tokens[:128], torch.float32)
        for one in (model.plan(), off_grid)
    )
    assert abs(apart(moved, exact)) < 1e-6
