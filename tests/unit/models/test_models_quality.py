"""What rounding costs the embedded model, as perplexity of the text of `quire bench perplexity`.

The file is 4 bits already, so its weights lie on the very grids that 4 bits have, and would be quantised again without loss.
`OffGrid` moves them: norms are multiplied into the matrices that read them, and factors that cancel into values and outputs, ups and
downs. It computes the same function with weights that lie nowhere in particular.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources

import pytest
import torch
from torch import Tensor

from quire.models import bundled
from quire.models.checkpoint import GGUFCheckpoint
from quire.models.cpu_decoder import PlanBuilder
from quire.models.executor import Batch, Executor, allocate_kv_pool
from quire.models.loader import NativeModel, inspect
from quire.models.precision import Precision, as_stored
from quire.models.source import resolve
from quire.text import load_tokenizer
from quire_kernels import ops

pytestmark = pytest.mark.model

CPU = torch.device("cpu")
CONTEXT, BLOCK = 512, 16
TOKENS = 2048
"""Of the text; the whole of it gives the same to 0.1 %."""


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


def costs(executor: Executor, model: NativeModel, tokens: list[int], kv_dtype: torch.dtype) -> Tensor:
    """What each token but the first of a chunk costs, in nats."""
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
            logit_rows=at[:-1],
        )
        hidden = executor.forward(batch, pool)
        for rows, following in zip(hidden.split(128), chunk[1:].split(128), strict=True):
            logprobs = executor.logits(rows).float().log_softmax(dim=-1)
            found.append(-logprobs.gather(1, following[:, None]).double())
    return torch.cat(found).flatten()


def more(ours: Tensor, theirs: Tensor) -> float:
    """By which share the perplexity is larger."""
    return math.expm1(float((ours - theirs).mean()))


class OffGrid(GGUFCheckpoint):
    """See the module."""

    def read(self, parameter: str) -> Tensor:
        d, kind = self._description, parameter.rpartition(".")[2]
        if kind.endswith("norm"):
            return torch.ones_like(super().read(parameter))
        values = super().read("embed" if parameter == "head" else parameter)
        layer = parameter.removesuffix(kind)
        if kind == "head":
            return values * super().read("norm")
        if kind in ("q", "k", "v"):
            values = values * super().read(f"{layer}attn_norm")
        if kind in ("gate", "up"):
            values = values * super().read(f"{layer}mlp_norm")
        group = d.num_heads // d.num_kv_heads
        each = self._factors(layer + "v", d.kv_size)
        if kind == "v":
            return values * each[:, None]
        if kind == "o":
            return values / each.view(d.num_kv_heads, 1, -1).expand(-1, group, -1).flatten()
        inner = self._factors(layer + "up", d.intermediate_size)
        if kind == "up":
            return values * inner[:, None]
        return values / inner if kind == "down" else values

    @staticmethod
    def _factors(name: str, count: int) -> Tensor:
        generator = torch.Generator().manual_seed(sum(name.encode()))
        return torch.exp2(torch.rand(count, generator=generator) - 0.5)


@pytest.fixture(scope="module")
def off_grid(model: NativeModel) -> PlanBuilder:
    assert model.gguf is not None
    untied = replace(model.description, tie_embeddings=False, quantization="none")
    return PlanBuilder(untied, OffGrid(model.gguf, model.description, model.names))


@pytest.fixture(scope="module")
def plain(model: NativeModel, tokens: list[int]) -> Tensor:
    """Of the file expanded to bfloat16."""
    return costs(model.plan().load(Precision.of(torch.bfloat16), CONTEXT), model, tokens, torch.bfloat16)


def test_the_file_as_it_is_stored(model: NativeModel, tokens: list[int], plain: Tensor) -> None:
    stored = costs(model.plan().load(as_stored(), CONTEXT), model, tokens, torch.bfloat16)
    assert more(stored, plain) < 0.005
    assert not torch.equal(stored, plain)


@pytest.mark.parametrize(("quantization", "bound"), [("int8", 0.01), ("int4", 0.04)])
def test_float_weights_that_are_quantised_as_they_are_loaded(
    off_grid: PlanBuilder, model: NativeModel, tokens: list[int], plain: Tensor, quantization: str, bound: float
) -> None:
    rounded = costs(off_grid.load(off_grid.precision("bfloat16", quantization), CONTEXT), model, tokens, torch.bfloat16)
    assert more(rounded, plain) < bound
    assert not torch.equal(rounded, plain)


def test_off_the_grid_it_is_the_same_model(off_grid: PlanBuilder, model: NativeModel, tokens: list[int]) -> None:
    """Else the test above compares apples with pears."""
    exact, moved = (
        costs(one.load(Precision.of(torch.float32), CONTEXT), model, tokens[:256], torch.float32)
        for one in (model.plan(), off_grid)
    )
    torch.testing.assert_close(moved, exact, rtol=0, atol=2e-3)
