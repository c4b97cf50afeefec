"""The CPU plan beside the torch modules, for every family: logits of ragged batches, whatever is asked for in them."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from quire.config import EngineConfig
from quire.engine.need import Need, sampling_bytes
from quire.errors import ModelError
from quire.models import checkpoint
from quire.models.cpu_decoder import CPUDecoder
from quire.models.decoder import Decoder
from quire.models.executor import Batch, Executor, KVPool, allocate_kv_pool
from quire.models.gguf_file import GGUFFile
from quire.models.loader import Inspected, NativeModel, inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire_kernels import cpu, dispatch, ops
from quire_testing.fidelity import plan_bytes
from quire_testing.packed_starts import packing
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import FAMILIES, VOCAB, make, save

ROUNDS_INPUTS = cpu.isa() == "avx512_bf16"
"""Products with bfloat16 weights round their inputs to bfloat16 too (docs/kernels.md)."""
CPU = torch.device("cpu")
POSITIONS, BLOCK, COUNT = 120, 8, 5
EXACT = Precision.of(torch.float32)


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> NativeModel:
    found = inspect(resolve(str(save(make(request.param), tmp_path_factory.mktemp(request.param)))))
    assert isinstance(found, NativeModel)
    return found


def steps(seed: int) -> list[list[tuple[int, range]]]:
    """Random steps over COUNT sequences: (sequence, positions), some sequences absent, chunks of any size."""
    rng = random.Random(seed)
    at = [0] * COUNT
    result = []
    for _ in range(12):
        step = []
        for sequence in rng.sample(range(COUNT), rng.randrange(1, COUNT + 1)):
            end = min(POSITIONS, at[sequence] + rng.choice([1, 1, 1, 2, 7, 40]))
            if end > at[sequence]:
                step.append((sequence, range(at[sequence], end)))
                at[sequence] = end
        if step:
            result.append(step)
    return result


def answers(executor: Executor, model: Inspected, seed: int, dtype: torch.dtype) -> tuple[list[Tensor], KVPool]:
    """Logits of random rows of each step."""
    rng = random.Random(seed)
    tokens = [[rng.randrange(3, VOCAB) for _ in range(POSITIONS)] for _ in range(COUNT)]
    columns = -(-POSITIONS // BLOCK)
    tables = torch.tensor(rng.sample(range(columns * COUNT), columns * COUNT), dtype=torch.int32).view(COUNT, columns)
    pool = allocate_kv_pool(model.description, columns * COUNT, BLOCK, dtype, CPU)
    for cache in (*pool.keys, *pool.values):
        cache.fill_(float("nan"))
    results = []
    for step in steps(seed):
        owner = torch.tensor([sequence for sequence, span in step for _ in span])
        positions = torch.tensor([p for _, span in step for p in span])
        rows = rng.choices(range(len(positions)), k=rng.choice([0, 1, len(step), 2 * len(positions)]))
        batch = Batch(
            token_ids=torch.tensor([tokens[sequence][p] for sequence, span in step for p in span]),
            positions=positions,
            slot_mapping=tables[owner, positions // BLOCK].long() * BLOCK + positions % BLOCK,
            block_tables=tables[[sequence for sequence, _ in step]].contiguous(),
            query_start=torch.tensor([0, *(len(span) for _, span in step)]).cumsum(0).int(),
            context_lens=torch.tensor([span.stop for _, span in step], dtype=torch.int32),
            logit_rows=torch.tensor(rows, dtype=torch.int64),
        )
        hidden = executor.forward(batch, pool)
        if rows:
            results.append(executor.logits(hidden))
    return results, pool


@pytest.mark.parametrize("seed", range(4))
def test_ragged_batches_as_the_torch_modules_compute_them(model: NativeModel, seed: int) -> None:
    ops.set_num_threads(1 + seed)
    theirs, their_pool = answers(model.modules(CPU).load(EXACT, POSITIONS), model, seed, torch.float32)
    ours, our_pool = answers(model.plan().load(EXACT, POSITIONS), model, seed, torch.float32)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4)
        assert torch.equal(one.argmax(-1), other.argmax(-1))
    for one, other in zip(our_pool.keys + our_pool.values, their_pool.keys + their_pool.values, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4, equal_nan=True)


def test_bfloat16_weights_stay_near(model: NativeModel) -> None:
    exact, _ = answers(model.plan().load(EXACT, POSITIONS), model, 1, torch.float32)
    narrow, _ = answers(model.plan().load(Precision.of(torch.bfloat16), POSITIONS), model, 1, torch.bfloat16)
    modules, _ = answers(model.modules(CPU).load(Precision.of(torch.bfloat16), POSITIONS), model, 1, torch.bfloat16)
    whole, ours, theirs = (torch.cat(each).float() for each in (exact, narrow, modules))
    error = (ours - whole).square().mean().sqrt()
    most = 1.5 if ROUNDS_INPUTS else 1.1  # activations stay float32; rounded ones may choose another expert
    assert 0 < error < most * (theirs - whole).square().mean().sqrt()


def executor_of(tmp_path: Path, name: str, dtype: torch.dtype = torch.float32) -> Any:
    return inspect(resolve(str(save(make(name), tmp_path)))).on(CPU).load(Precision.of(dtype), 16)


def test_who_gets_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(executor_of(tmp_path / "a", "llama"), CPUDecoder)
    assert isinstance(executor_of(tmp_path / "b", "llama", torch.bfloat16), CPUDecoder)
    assert isinstance(executor_of(tmp_path / "c", "llama", torch.float16), CPUDecoder)
    assert isinstance(executor_of(tmp_path / "d", "mixtral"), CPUDecoder)
    monkeypatch.setenv(dispatch.CHOICE_VARIABLE, "ref")
    dispatch.select.cache_clear()
    try:
        assert isinstance(executor_of(tmp_path / "e", "llama"), Decoder)
    finally:
        monkeypatch.undo()
        dispatch.select.cache_clear()


STORED = [["Q4_1"], ["Q8_0"], ["Q4_0", "Q5_0", "Q8_0", "Q5_1"], ["Q8_0", "F16", "Q4_1"], ["F16"], ["BF16"]]


@pytest.mark.parametrize("types", STORED, ids="+".join)
def test_a_quantised_file_is_computed_as_it_is_stored(types: list[str], tmp_path: Path) -> None:
    source = make("llama")
    file = save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=types)
    model = inspect(resolve(str(file)))
    assert isinstance(model, NativeModel)
    stored, _ = answers(model.plan().load(model.plan().precision(), POSITIONS), model, 2, torch.float32)
    exact, _ = answers(model.modules(CPU).load(EXACT, POSITIONS), model, 2, torch.float32)
    one, other = torch.cat(stored), torch.cat(exact)
    error = float((one - other).square().mean().sqrt() / other.std())
    rounding = {"F16": 1e-5, "BF16": 0.02 if ROUNDS_INPUTS else 1e-5}.get(
        types[0], 0.05
    )  # of inputs; weights are as they are
    assert error < rounding


def test_the_footprint_is_what_is_packed(tmp_path: Path) -> None:
    source = make("llama")
    for types in (*STORED, []):
        file = save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=types)
        model = inspect(resolve(str(file)))
        quantised = [Precision(torch.float32, torch.bfloat16, name) for name in ("int8", "int4")]
        for precision in (
            model.plan().precision(),
            *quantised,
            *map(Precision.of, (torch.float32, torch.bfloat16, torch.float16)),
        ):
            with packing() as packed:
                model.on(CPU).load(precision, POSITIONS)
            vectors = 4 * sum(shape[0] for shape in model.description.parameters().values() if len(shape) == 1)
            assert model.on(CPU).footprint(precision).weights == sum(packed) + vectors


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_the_footprint_of_experts_is_what_is_packed(name: str, tmp_path: Path) -> None:
    model = inspect(resolve(str(save(make(name), tmp_path))))
    assert isinstance(model, NativeModel)
    quantised = [Precision(torch.float32, torch.bfloat16, name) for name in ("int8", "int4")]
    for precision in (*quantised, *map(Precision.of, (torch.float32, torch.bfloat16))):
        with packing() as packed:
            model.on(CPU).load(precision, POSITIONS)
        vectors = 4 * sum(shape[0] for shape in model.description.parameters().values() if len(shape) == 1)
        assert model.on(CPU).footprint(precision).weights == sum(packed) + vectors


PRECISIONS = [
    EXACT,
    Precision.of(torch.bfloat16),
    *(Precision(torch.float32, torch.bfloat16, name) for name in ("int8", "int4")),
]


def test_a_step_takes_what_is_planned(model: NativeModel) -> None:
    """The formula in Python beside what the extension holds, experts too."""
    ops.set_num_threads(1)
    for precision in PRECISIONS:
        taken, footprint = plan_bytes(model, precision, 256, 256)
        planned = 256 * footprint.activations_per_token + footprint.activations_per_step
        assert 0.98 * planned < taken <= planned
        assert plan_bytes(model, precision, 512, 512)[0] - taken == 256 * footprint.activations_per_token


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_few_items_with_a_long_context_take_no_more_than_planned(name: str, tmp_path: Path) -> None:
    """The threads share the keys of one sequence; what each makes of its part is kept."""
    model = inspect(resolve(str(save(make(name), tmp_path))))
    assert isinstance(model, NativeModel)
    model = replace(model, description=replace(model.description, max_model_len=8192))
    ops.set_num_threads(4)
    for precision in PRECISIONS:
        short, _ = plan_bytes(model, precision, 32, 32)
        taken, footprint = plan_bytes(model, precision, 32, 8192)
        assert taken > short  # else the keys were not shared
        config = EngineConfig(model=name, max_num_batched_tokens=32, max_num_seqs=1)
        planned = Need(model.description, config, footprint, 4).activation_bytes
        assert taken <= planned - sampling_bytes(model.description, config, footprint.logit)


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    source = make("llama")
    file = save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=["Q4_1"])
    tensor = GGUFFile(file).tensors["blk.1.ffn_down.weight"]
    raw = bytearray(file.read_bytes())
    raw[tensor.start + 2 : tensor.start + 4] = struct.pack("<e", float("nan"))
    file.write_bytes(raw)
    model = inspect(resolve(str(file)))
    with pytest.raises(ModelError, match=r"tensor blk.1.ffn_down.weight holds numbers that are not finite"):
        model.on(CPU).load(model.plan().precision(), 16)


K_BLOCKS = {
    ops.GgmlType.Q4_K: lambda d: struct.pack("<ee", d, 0.0) + b"\xff" * 140,
    ops.GgmlType.Q5_K: lambda d: struct.pack("<ee", 0.0, d) + b"\xff" * 172,
    ops.GgmlType.Q6_K: lambda d: b"\xff" * 192 + b"\x80" * 16 + struct.pack("<e", d),
}
"""Of the largest integers: d times 63 is a scale, a minimum; d times -128 a scale."""


@pytest.mark.parametrize("d", [100.0, 511.0, 512.0, 1039.0, 1040.0, 60_000.0, float("inf")])
@pytest.mark.parametrize("kind", K_BLOCKS, ids=lambda kind: kind.name)
def test_where_scales_are_finite_all_that_is_packed_is(kind: ops.GgmlType, d: float) -> None:
    raw = torch.frombuffer(bytearray(K_BLOCKS[kind](d)), dtype=torch.uint8)
    packed = ops.pack_gguf([(raw, kind, 1)], 256)
    products = ops.packed_linear(torch.ones(1, 256), packed)
    assert bool(torch.isfinite(products).all()) == bool(torch.isfinite(checkpoint._scales(raw, kind)).all())
