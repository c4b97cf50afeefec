"""Random calls under every instruction set: right, the same bits alone, and nothing beyond the end of a tensor.

Tensors are exactly as large as what they hold, so a byte too far is a byte outside, which `make test-asan` sees (and makes more
cases of: QUIRE_FUZZ_CASES). Bad calls are made on memory that nobody may touch: whoever reads before he has checked ends the process.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernel_cases
from kernel_cases import ATTENTION_TOLERANCE, PagedBatch, assert_product, paged_batch, random_blocks, run_alone
from plan_cases import VOCAB, Shape, model, run
from quire_kernels import ops, ref
from quire_kernels.decoder import DecoderPlan

SEEDS = range(int(os.environ.get("QUIRE_FUZZ_CASES", "6")))
# Both sides round to the type: a unit apart at most. A norm rounds before the weight too: a unit there and one after it.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
DTYPES = list(ROUNDING)


class Draw(random.Random):
    """Random choices, of tensors too."""

    def tensor(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(self.getrandbits(40))).to(dtype)


@pytest.fixture
def draw(cpu_implementation: str, request: pytest.FixtureRequest) -> Draw:
    draw = Draw(request.node.callspec.params["seed"])
    ops.set_num_threads(draw.randint(1, 4))
    return draw


@pytest.fixture(autouse=True)
def all_is_drawn_from_the_seed() -> Iterator[None]:
    """So that what a seed found comes again."""
    before = torch.get_rng_state()
    yield
    assert torch.equal(torch.get_rng_state(), before), "something was drawn from torch's global generator"


def blocks_of(draw: Draw, kind: ops.GgmlType, count: int) -> Tensor:
    return torch.from_numpy(random_blocks(kind, count, draw.getrandbits(40))).flatten()


def exact(batch: PagedBatch) -> PagedBatch:
    """The same batch with no block and no column of the block table to spare."""
    needed = [-(-int(context) // batch.key_cache.shape[1]) for context in batch.context_lens]
    named = [batch.block_tables[sequence, :count] for sequence, count in enumerate(needed)]
    used = torch.cat(named).sort().values
    tables = torch.full((len(needed), max(needed, default=0)), -(2**31), dtype=torch.int32)
    for sequence, blocks in enumerate(named):
        tables[sequence, : len(blocks)] = torch.searchsorted(used, blocks)
    return replace(
        batch,
        block_tables=tables,
        key_cache=batch.key_cache[used.long()].clone(),
        value_cache=batch.value_cache[used.long()].clone(),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_attention(draw: Draw, seed: int) -> None:
    lengths = []
    for _ in range(draw.randint(1, 5)):
        count = draw.choice([0, 1, 1, 1, 2, 7, 33, 64, 97])
        lengths.append((count, count + draw.choice([0, 0, 1, 5, 63, 64, 130, 511, 700])))
    kv_heads = draw.randint(1, 3)
    batch = exact(
        paged_batch(
            lengths,
            heads=(kv_heads * draw.randint(1, 8), kv_heads),
            head_size=draw.randint(1, 160),
            block_size=draw.randint(1, 40),
            dtype=draw.choice(DTYPES),
            cache_dtype=draw.choice(DTYPES),
            padding=draw.randint(0, 2),
            seed=seed,
        )
    )
    batch = replace(
        batch, window=draw.choice([0, 0, 1, 2, 63, 64, 65, 300, 513]), softcap=draw.choice([0.0, 0.0, 0.5, 30.0])
    )
    result = batch.run()
    torch.testing.assert_close(result.double(), batch.expected(), **ATTENTION_TOLERANCE[batch.query.dtype])
    for sequence in range(len(lengths)):
        assert torch.equal(exact(batch.alone(sequence)).run(), result[batch.rows(sequence)])


@pytest.mark.parametrize("seed", SEEDS)
def test_rows(draw: Draw, seed: int) -> None:
    dtype = draw.choice(DTYPES)
    tokens, width = draw.randint(0, 70), draw.randint(1, 700)
    x, residual, weight = (draw.tensor(*shape, dtype=dtype) for shape in ((tokens, width), (tokens, width), (width,)))
    offset = draw.choice([0.0, 1.0])
    expected, sums = torch.empty_like(x), residual.clone()

    def same(result: Tensor, expected: Tensor, atol: float = 2e-6) -> None:
        torch.testing.assert_close(result, expected, rtol=2 * ROUNDING[dtype], atol=atol)

    ref.rms_norm(x, weight, 1e-5, offset, expected)
    same(ops.rms_norm(x, weight, 1e-5, offset=offset), expected)
    ref.fused_add_rms_norm(x, sums, weight, 1e-5, offset, expected)
    same(ops.fused_add_rms_norm(x, residual, weight, 1e-5, offset=offset), expected)
    assert torch.equal(residual, sums)

    gate_up = draw.tensor(tokens, 2 * width, dtype=dtype) * 3
    for ours, theirs in ((ops.silu_mul, ref.silu_mul), (ops.gelu_tanh_mul, ref.gelu_tanh_mul)):
        theirs(gate_up, expected)
        same(ours(gate_up), expected, atol=2e-5)  # torch's formula cancels where a gate is nearly closed


@pytest.mark.parametrize("seed", SEEDS)
def test_heads_and_cache(draw: Draw, seed: int) -> None:
    dtype, cache_dtype = draw.choice(DTYPES), draw.choice(DTYPES)
    tokens, heads, kv_heads, head_size = (
        draw.randint(0, 50),
        draw.randint(1, 9),
        draw.randint(1, 4),
        draw.randint(2, 160),
    )
    ours = [draw.tensor(tokens, count, head_size, dtype=dtype) for count in (heads, kv_heads)]
    theirs = [each.clone() for each in ours]
    weights = [draw.tensor(head_size, dtype=dtype) for _ in range(2)]
    ops.head_rms_norm(*ours, *weights, 1e-5)
    ref.head_rms_norm(*theirs, *weights, 1e-5, 0.0)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=2 * ROUNDING[dtype], atol=2e-6)
        other.copy_(mine)

    angles = draw.tensor(draw.randint(1, 30), draw.randint(1, head_size // 2))
    positions = torch.tensor([draw.randrange(len(angles)) for _ in range(tokens)], dtype=torch.int64)
    ops.rope(*ours, positions, angles.cos(), angles.sin())
    ref.rope(*theirs, positions, angles.cos(), angles.sin())
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=ROUNDING[dtype], atol=1e-5)

    block_size = draw.randint(1, 20)
    blocks = -(-max(tokens, 1) // block_size)
    slots = torch.tensor(draw.sample(range(blocks * block_size), tokens), dtype=torch.int64)
    slots[[draw.random() < 0.1 for _ in range(tokens)]] = -1
    caches = [torch.zeros(blocks, block_size, kv_heads, head_size, dtype=cache_dtype) for _ in range(4)]
    key, value = ours[1], draw.tensor(tokens, kv_heads, head_size, dtype=dtype)
    ops.write_kv(key, value, caches[0], caches[1], slots)
    ref.write_kv(key, value, caches[2], caches[3], slots)
    assert torch.equal(caches[0], caches[2]) and torch.equal(caches[1], caches[3])


@pytest.mark.parametrize("seed", SEEDS)
def test_products(draw: Draw, cpu_implementation: str, seed: int) -> None:
    cols = draw.randint(1, 400)
    if draw.random() < 0.5:
        packed = ops.pack_weight(
            draw.tensor(draw.randint(1, 90), cols, dtype=draw.choice(DTYPES)), draw.choice(ops.PACKED_FORMATS)
        )
    else:
        quants = [kind for kind in ops.GgmlType if ops.GGML_BLOCKS[kind][0] > 1]
        kinds = [draw.choice(quants) for _ in range(draw.randint(1, 4))]
        cols = max(ops.GGML_BLOCKS[kind][0] for kind in kinds) * draw.randint(1, 3)
        parts = []
        for kind in kinds:
            elements, rows = ops.GGML_BLOCKS[kind][0], draw.randint(1, 40)
            raw = blocks_of(draw, kind, rows * cols // elements)
            for dtype in DTYPES:
                expected = torch.empty(rows * cols, dtype=dtype)
                ref.dequantize_gguf(raw, int(kind), elements, ops.GGML_BLOCKS[kind][1], expected)
                assert torch.equal(ops.dequantize_gguf(raw, kind, rows * cols, dtype), expected)
            parts.append((raw, kind, rows))
        packed = ops.pack_gguf(parts, cols)
    x = draw.tensor(draw.randint(1, 40), cols)
    bias = draw.tensor(packed.shape[0]) if draw.random() < 0.5 else None
    result = ops.packed_linear(x, packed, bias)
    assert_product(cpu_implementation, x, packed, result, bias)
    for row in range(len(x)):
        assert torch.equal(ops.packed_linear(x[row : row + 1].clone(), packed, bias)[0], result[row])


@pytest.mark.parametrize("seed", SEEDS)
def test_plans(draw: Draw, seed: int) -> None:
    kv_heads = draw.randint(1, 3)
    shape = Shape(
        hidden=draw.randint(1, 70),
        heads=kv_heads * draw.randint(1, 4),
        kv_heads=kv_heads,
        head_size=draw.randint(8, 40),
        inner=draw.randint(1, 90),
        block=draw.randint(1, 20),
        experts=draw.choice([0, 0, 1, 3, 9]),
    )
    shape = replace(shape, chosen=draw.randint(1, max(1, shape.experts)))
    plan = DecoderPlan(model(draw.choice(ops.PACKED_FORMATS), shape, draw.getrandbits(40)))
    dtype = draw.choice(DTYPES)
    tokens = [[draw.randrange(VOCAB) for _ in range(draw.randint(1, 40))] for _ in range(draw.randint(1, 5))]
    cuts = [sorted({*(draw.randint(1, len(each)) for _ in range(draw.randint(0, 4))), len(each)}) for each in tokens]
    together = run(plan, tokens, cuts, dtype, shape)
    ops.set_num_threads(draw.randint(1, 4))
    for each, hidden in zip(tokens, together, strict=True):
        assert bool(hidden.isfinite().all())
        assert torch.equal(run(plan, [each], [[len(each)]], dtype, shape)[0], hidden)
        assert torch.equal(plan.logits(hidden)[-1:], plan.logits(hidden[-1:].clone()))


# ---- bad calls ----

Spec = tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]  # shape, type, dimensions that are free
HALF, FLOAT, INT, LONG = torch.bfloat16, torch.float32, torch.int32, torch.int64
SPECS: dict[str, dict[str, Spec]] = {
    "paged_attention": {
        "query": ((6, 8, 32), FLOAT, ()),
        "key_cache": ((9, 16, 2, 32), HALF, ()),
        "value_cache": ((9, 16, 2, 32), HALF, ()),
        "block_tables": ((3, 5), INT, (1,)),
        "query_start": ((4,), INT, ()),
        "context_lens": ((3,), INT, ()),
        "out": ((6, 8, 32), FLOAT, ()),
    },
    "write_kv": {
        "key": ((6, 2, 32), FLOAT, ()),
        "value": ((6, 2, 32), FLOAT, ()),
        "key_cache": ((9, 16, 2, 32), HALF, ()),
        "value_cache": ((9, 16, 2, 32), HALF, ()),
        "slot_mapping": ((6,), LONG, ()),
    },
    "rope": {
        "query": ((6, 8, 32), HALF, (1,)),
        "key": ((6, 2, 32), HALF, (1,)),
        "positions": ((6,), LONG, ()),
        "cos": ((50, 8), FLOAT, ()),
        "sin": ((50, 8), FLOAT, ()),
    },
    "rms_norm": {"x": ((6, 40), HALF, ()), "weight": ((40,), HALF, ()), "out": ((6, 40), HALF, ())},
    "head_rms_norm": {
        "query": ((6, 8, 32), HALF, (1,)),
        "key": ((6, 2, 32), HALF, (1,)),
        "query_weight": ((32,), HALF, ()),
        "key_weight": ((32,), HALF, ()),
    },
    "silu_mul": {"gate_up": ((6, 40), FLOAT, ()), "out": ((6, 20), FLOAT, ())},
    "packed_linear": {"x": ((6, 40), FLOAT, ()), "bias": ((24,), FLOAT, ()), "out": ((6, 24), FLOAT, ())},
}
OTHERS: dict[str, dict[str, object]] = {
    "paged_attention": {"scale": 1.0},
    "rms_norm": {"eps": 1e-5},
    "head_rms_norm": {"eps": 1e-5},
}


def forbidden(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor in pages that may neither be read nor written."""
    memory = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize, prot=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the buffer is not writable is the point
        return torch.frombuffer(memory, dtype=dtype)[: math.prod(shape)].view(shape)


def spoilt(draw: Draw, specs: dict[str, Spec]) -> dict[str, Tensor]:
    """All arguments out of reach, and one of them with a shape or type that does not fit."""
    victim = draw.choice(sorted(specs))
    arguments = {}
    for name, (shape, dtype, free) in specs.items():
        if name == victim:
            dimension = draw.choice([i for i in range(len(shape)) if i not in free])
            size = draw.choice([1, shape[dimension] - 1, shape[dimension] + 1, 3 * shape[dimension]])
            changed = (*shape[:dimension], size, *shape[dimension + 1 :])
            match draw.randrange(4):
                case 0:
                    dtype = draw.choice([t for t in (FLOAT, HALF, INT, LONG, torch.uint8) if t != dtype])
                case 1:
                    shape = (*shape, 1)
                case _:
                    shape = changed
        arguments[name] = forbidden(shape, dtype)
    return arguments


def bad_calls(count: int) -> None:
    """In a process of its own."""
    draw = Draw(count)
    weight = ops.pack_weight(draw.tensor(24, 40), "q8")
    for _ in range(count):
        name = draw.choice(sorted(SPECS))
        arguments = {**spoilt(draw, SPECS[name]), **OTHERS.get(name, {})}
        if name == "packed_linear":
            arguments["packed"] = weight
        function: Callable[..., object] = getattr(ops, name)
        with pytest.raises(ops.ArgumentError):
            function(**arguments)


def bad_values() -> None:
    """In a process of its own: indices are read, what they lead to is not."""

    def integers(*values: int, dtype: torch.dtype = INT) -> Tensor:
        return torch.tensor(values, dtype=dtype)

    def attention(tables: Tensor, starts: Tensor, contexts: Tensor) -> None:
        caches = [forbidden((9, 16, 2, 32), HALF) for _ in range(2)]
        ops.paged_attention(
            forbidden((6, 8, 32), FLOAT), *caches, tables, starts, contexts, 1.0, forbidden((6, 8, 32), FLOAT)
        )

    good = integers(*range(6)).view(2, 3)
    for block in (9, -1, 2**31 - 1, -(2**31)):
        tables = good.clone()
        tables[1, 1] = block
        with pytest.raises(ops.ArgumentError, match="block_tables"):
            attention(tables, integers(0, 1, 6), integers(48, 20))
    for starts, contexts in (
        ((0, 1, 7), (48, 20)),
        ((0, 4, 3), (48, 20)),
        ((1, 2, 6), (48, 20)),
        ((0, 1, 6), (49, 20)),
        ((0, 1, 6), (48, 4)),
        ((0, 1, 6), (48, 2**31 - 1)),
        ((0, 1, 6), (48, -1)),
        ((-1, 1, 6), (48, 20)),
        ((0, -(2**31), 6), (48, 20)),
    ):
        with pytest.raises(ops.ArgumentError):
            attention(good, integers(*starts), integers(*contexts))
    for slot in (9 * 16, -2, 2**62, -(2**63)):
        with pytest.raises(ops.ArgumentError, match="slot_mapping"):
            caches = [forbidden((9, 16, 2, 32), HALF) for _ in range(2)]
            rows = [forbidden((2, 2, 32), FLOAT) for _ in range(2)]
            ops.write_kv(*rows, *caches, integers(3, slot, dtype=LONG))
    for position in (50, -1, 2**62, -(2**63)):
        with pytest.raises(ops.ArgumentError, match="positions"):
            tables = [forbidden((50, 8), FLOAT) for _ in range(2)]
            ops.rope(
                forbidden((2, 8, 32), HALF), forbidden((2, 2, 32), HALF), integers(0, position, dtype=LONG), *tables
            )


ALONE = """
import importlib.util, sys
from quire_kernels import cpu
sys.path.insert(0, {support!r})
spec = importlib.util.spec_from_file_location("fuzz", {here!r})
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz"] = fuzz
spec.loader.exec_module(fuzz)
for isa in cpu.available_isas():
    cpu.use_isa(isa)
    fuzz.{call}
print("refused")
"""


@pytest.mark.parametrize("call", [f"bad_calls({50 * len(SEEDS)})", "bad_values()"])
def test_bad_calls_touch_nothing(call: str) -> None:
    support = str(Path(kernel_cases.__file__).parent)
    assert run_alone(ALONE.format(support=support, here=__file__, call=call)) == (0, "refused\n", "")


def test_memory_is_out_of_reach() -> None:
    """Else the test above shows nothing."""
    support = str(Path(kernel_cases.__file__).parent)
    status, _, errors = run_alone(
        ALONE.format(support=support, here=__file__, call="forbidden((4,), fuzz.FLOAT).sum()")
    )
    assert status == -signal.SIGSEGV or "AddressSanitizer: SEGV" in errors, (status, errors)


def test_every_seed_sees_other_bytes() -> None:
    for kind in ops.GgmlType:
        first, again, other = (random_blocks(kind, 8, seed) for seed in (1, 1, 2))
        assert (first == again).all() and (first != other).mean() > 0.5


@pytest.mark.parametrize("kind", [*ops.PACKED_FORMATS, ops.GgmlType.Q4_1, ops.GgmlType.Q6_K], ids=str)
def test_a_product_without_one_of_its_columns_is_seen(cpu_implementation: str, kind: str | ops.GgmlType) -> None:
    draw = Draw(0)
    if isinstance(kind, ops.GgmlType):
        packed = ops.pack_gguf([(blocks_of(draw, kind, 20 * 512 // ops.GGML_BLOCKS[kind][0]), kind, 20)], 512)
    else:
        packed = ops.pack_weight(draw.tensor(20, 400), kind)
    x = draw.tensor(3, packed.shape[1])
    result = ops.packed_linear(x, packed)
    assert_product(cpu_implementation, x, packed, result)
    lost = x[:, 123:124] * ops.unpack_weight(packed)[:, 123]
    with pytest.raises(AssertionError, match="differs first"):
        assert_product(cpu_implementation, x, packed, result - lost)
