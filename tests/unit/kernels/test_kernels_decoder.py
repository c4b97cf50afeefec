"""The decoder plan: the same bits in any company, damage that stays where it is, calls that are refused. What it computes is
compared with the torch modules in tests/unit/models."""

from __future__ import annotations

import gc
import random
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import plan_cases
from kernel_cases import run_alone
from plan_cases import BLOCK, POSITIONS, VOCAB, Pool, Shape, model, run
from quire_kernels import cpu, ops
from quire_kernels.decoder import DecoderPlan, record_bytes, step_bytes

FORMATS = ["f32", "bf16", "q8", "q4"]
SHAPES = [Shape(), Shape(experts=5)]


def sequences(count: int, seed: int, longest: int = 60) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def cuts_of(tokens: list[int], rng: random.Random) -> list[int]:
    """Where the steps of a sequence end: chunks of any size, some steps without it."""
    cuts = [0] * rng.randrange(3)
    while not cuts or cuts[-1] < len(tokens):
        at = cuts[-1] if cuts else 0
        cuts.append(min(len(tokens), at + rng.choice([0, 1, 1, 1, 2, 5, 17, 64])))
    return cuts


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=["mlp", "experts"])
def test_a_sequence_has_the_same_bits_alone_in_a_crowd_and_on_any_number_of_threads(
    cpu_implementation: str, format: str, shape: Shape
) -> None:
    plan = DecoderPlan(model(format, shape))
    tokens = sequences(9, seed=1)
    ops.set_num_threads(1)
    alone = [run(plan, [each], [[len(each)]])[0] for each in tokens]
    logits = [plan.logits(each) for each in alone]
    assert all(bool(each.isfinite().all()) for each in alone)
    rng = random.Random(2)
    for threads in (1, 2, 3, 5):
        ops.set_num_threads(threads)
        together = run(plan, tokens, [cuts_of(each, rng) for each in tokens])
        for one, other in zip(alone, together, strict=True):
            assert torch.equal(one, other)
        for one, other in zip(
            logits, plan.logits(torch.cat(together)).split([len(each) for each in tokens]), strict=True
        ):
            assert torch.equal(one, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_cache_changes_little_and_the_same_for_everybody(cpu_implementation: str, dtype: torch.dtype) -> None:
    plan = DecoderPlan(model())
    tokens = sequences(4, seed=5)
    exact = run(plan, tokens, [[len(each)] for each in tokens])
    narrow = run(plan, tokens, [[len(each)] for each in tokens], dtype)
    chunks = run(plan, tokens, [list(range(1, len(each) + 1)) for each in tokens], dtype)
    for one, other, again in zip(exact, narrow, chunks, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.1)
        assert torch.equal(other, again)
        assert not torch.equal(one, other)


def test_rows_are_answered_as_they_are_asked_for() -> None:
    plan = DecoderPlan(model())
    tokens = sequences(5, seed=7)
    spans = [range(len(each)) for each in tokens]
    pool = Pool.make(len(tokens))
    count = sum(map(len, tokens))
    every = plan.forward(**pool.arguments(tokens, spans, range(count)))
    rng = random.Random(8)
    for rows in (
        [],
        [count - 1],
        [3, 3, 3],
        list(range(count))[::-1],
        [rng.randrange(count) for _ in range(2 * count)],
    ):
        assert torch.equal(plan.forward(**pool.arguments(tokens, spans, rows)), every[rows])


@pytest.mark.parametrize("shape", SHAPES, ids=["mlp", "experts"])
def test_a_row_that_is_not_finite_spoils_no_other(cpu_implementation: str, shape: Shape) -> None:
    for format in FORMATS:
        plan = DecoderPlan(model(format, shape))
        tokens = sequences(4, seed=9)
        expected = run(plan, tokens, [[len(each)] for each in tokens])
        pool = Pool.make(len(tokens))
        spans = [range(len(each)) for each in tokens]
        plan.forward(**pool.arguments(tokens, [range(len(each) - 1) for each in tokens], []))
        broken = pool.tables[1, 0]
        pool.values[0][broken, 0] = float("nan")
        pool.values[0][pool.tables[2, 0], 0] = float("inf")
        last = [range(len(each) - 1, len(each)) for each in tokens]
        hidden = plan.forward(**pool.arguments(tokens, last, range(4)))
        assert spans[1].stop > 1
        assert spans[2].stop > 1
        assert hidden[1].isnan().all()
        assert not hidden[2].isfinite().any()
        for index in (0, 3):
            assert torch.equal(hidden[index], expected[index][-1])
        logits = plan.logits(hidden)
        assert logits[1].isnan().all()
        assert logits[3].isfinite().all()


def test_logits_of_more_rows_than_any_step_had() -> None:
    plan = DecoderPlan(model("q8"))
    hidden = torch.randn(300, 48)
    whole = plan.logits(hidden)
    assert torch.equal(whole, torch.cat([plan.logits(row) for row in hidden.split(1)]))
    assert whole.abs().max() <= 5.0
    assert plan.logits(hidden[:0]).shape == (0, VOCAB)


def batch(**changes: Any) -> dict[str, Any]:
    tokens = [[1, 2, 3], [4]]
    return Pool.make(2).arguments(tokens, [range(3), range(1)], [2, 3]) | changes


LONG = torch.int64
REFUSED = [
    ({"token_ids": torch.zeros(4)}, "token_ids must be int64, got float32"),
    ({"token_ids": torch.tensor([0, 0, 0, VOCAB])}, r"token_ids\[3\] is 61, outside 0..60"),
    ({"token_ids": torch.tensor([0, -1, 0, 0])}, r"token_ids\[1\] is -1, outside 0..60"),
    ({"token_ids": torch.zeros(2, 2, dtype=LONG)}, "token_ids must have 1 dimensions, got 2"),
    ({"positions": torch.zeros(3, dtype=LONG)}, r"positions must have shape \[4\], got \[3\]"),
    ({"positions": torch.tensor([0, 1, 2, POSITIONS])}, r"positions\[3\] is 200, outside 0..199"),
    ({"slot_mapping": torch.tensor([0, 1, 2, 50 * BLOCK])}, r"slot_mapping\[3\] is 400, outside -1..399"),
    ({"logit_rows": torch.tensor([4])}, r"logit_rows\[0\] is 4, outside 0..3"),
    ({"logit_rows": torch.tensor([1], dtype=torch.int32)}, "logit_rows must be int64, got int32"),
    ({"query_start": torch.tensor([0, 3, 3], dtype=torch.int32)}, "query_start must end at the 4 tokens, got 3"),
    (
        {
            "query_start": torch.tensor([0, 5, 4], dtype=torch.int32),
            "context_lens": torch.tensor([5, 1], dtype=torch.int32),
        },
        "query_start must not decrease",
    ),
    ({"context_lens": torch.tensor([2, 1], dtype=torch.int32)}, r"context_lens\[0\] is 2, less than"),
    ({"context_lens": torch.tensor([3], dtype=torch.int32)}, r"context_lens must have shape \[2\], got \[1\]"),
    ({"block_tables": torch.full((2, 1), 50, dtype=torch.int32)}, r"block_tables\[0\]\[0\] is 50, outside 0..49"),
    ({"block_tables": torch.zeros(2, 0, dtype=torch.int32)}, "more than the 0 slots"),
    ({"keys": Pool.make(2).keys[:1]}, "one cache for each of the 2 layers, got 1 and 2"),
    ({"keys": [torch.zeros(50, BLOCK, 2, 4)] * 2}, r"keys\[0\] must have shape \[50, 8, 2, 8\], got \[50, 8, 2, 4\]"),
    (
        {"values": [torch.zeros(50, BLOCK, 2, 8, dtype=torch.bfloat16)] * 2},
        r"values\[0\] must be float32, got bfloat16",
    ),
    ({"values": [torch.zeros(50, BLOCK, 2, 16)[..., :8]] * 2}, r"values\[0\] must be contiguous in its last two"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_a_bad_batch_is_refused_and_nothing_is_written(changes: dict[str, Any], message: str) -> None:
    plan = DecoderPlan(model())
    arguments = batch(**changes)
    with pytest.raises(ops.ArgumentError, match=message):
        plan.forward(**arguments)
    for cache in (*batch()["keys"], *(arguments["keys"] if "keys" not in changes else [])):
        assert cache.isnan().all()
    assert plan.forward(**batch()).isfinite().all()


BAD_MODELS: list[tuple[dict[str, Any], str]] = [
    ({"num_kv_heads": 4}, "num_heads is 6, which is not a multiple of num_kv_heads 4"),
    ({"num_kv_heads": 3}, r"layers\[0\].qkv must have shape \[96, 48\], got \[80, 48\]"),
    ({"hidden_size": 40}, r"embed must have shape \[61, 40\], got \[61, 48\]"),
    ({"norm": torch.zeros(5)}, "norm must have 48 numbers, got 5"),
    ({"norm": torch.zeros(48, dtype=torch.float64)}, "norm (must be float32|has an element type)"),
    ({"qk_norm": "head"}, r"layers\[0\].q_norm must have 8 numbers, got 0"),
    ({"qk_norm": "some"}, "qk_norm is 'some'"),
    ({"embed": torch.zeros(61, 48)}, "embed must be a PackedWeight"),
    ({"layers": []}, "layers must not be empty"),
    ({"head_size": 513}, "head_size must be between 1 and 512, got 513"),
    ({"hidden_size": 0}, "hidden_size must be 1 or more, got 0"),
    ({"intermediate_size": 0}, "intermediate_size must be 1 or more, got 0"),
    ({"intermediate_size": -40}, "intermediate_size must be 1 or more, got -40"),
    ({"vocab_size": 0}, "vocab_size must be 1 or more, got 0"),
    ({"head": None}, r"head must be a PackedWeight of shape \[61, 48\]"),
    ({"experts_per_token": 1}, "experts_per_token must be 0 where there are no experts, got 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_MODELS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_model_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        DecoderPlan(model(**changes))


def test_a_layer_whose_parts_do_not_fit_is_refused() -> None:
    good = model()
    router = ops.pack_weight(torch.zeros(5, 48), "f32")
    for changes, message in (
        ({"o": good.layers[0].down}, r"layers\[1\].o must have shape \[48, 48\], got \[48, 40\]"),
        ({"gate_up": None}, r"layers\[1\].gate_up must be a PackedWeight of shape \[80, 48\]"),
        ({"router": router}, r"layers\[1\].router must be None where there are no experts"),
        ({"q_norm": torch.ones(8)}, r"layers\[1\].q_norm must be None where qk_norm is none"),
        ({"k_norm": torch.ones(8)}, r"layers\[1\].k_norm must be None where qk_norm is none"),
        ({"down_bias": torch.zeros(3)}, r"layers\[1\].down_bias must have 48 numbers, got 3"),
        ({"window": -1}, r"layers\[1\].window must be 0"),
        ({"sin": torch.zeros(3, 4)}, r"sin must have shape \[200, 4\], got \[3, 4\]"),
        ({"cos": torch.zeros(9, 5), "sin": torch.zeros(9, 5)}, r"layers\[1\].cos has 5 columns, more than half"),
    ):
        with pytest.raises(ops.ArgumentError, match=message):
            DecoderPlan(replace(good, layers=[good.layers[0], replace(good.layers[1], **changes)]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts_per_token": 6}, "experts_per_token must be between 1 and the 5 experts, got 6"),
        ({"experts_per_token": 0}, "experts_per_token must be between 1 and the 5 experts, got 0"),
    ],
)
def test_numbers_of_experts_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        DecoderPlan(model("q8", Shape(experts=5), **changes))


def test_experts_that_do_not_fit_are_refused() -> None:
    good = model("q8", Shape(experts=5))
    first, second = good.layers
    experts = list(second.experts)
    other = model("f32", Shape(experts=5)).layers[1]
    for changes, message in (
        ({"experts": experts[:4]}, r"layers\[1\].experts must be 5, as in the first layer, got 4"),
        ({"experts": ()}, r"layers\[1\].experts must be 5, as in the first layer, got 0"),
        ({"router": None}, r"layers\[1\].router must be a PackedWeight of shape \[5, 48\]"),
        ({"gate_up": experts[0].gate_up}, r"layers\[1\].gate_up must be None where there are experts"),
        ({"down": experts[0].down}, r"layers\[1\].down must be None where there are experts"),
        ({"gate_up_bias": torch.zeros(80)}, r"layers\[1\].gate_up_bias must be None where there are experts"),
        ({"down_bias": torch.zeros(48)}, r"layers\[1\].down_bias must be None where there are experts"),
        ({"router": second.qkv}, r"layers\[1\].router must have shape \[5, 48\], got \[80, 48\]"),
        ({"router": ops.pack_weight(torch.zeros(5, 48), "q8")}, r"layers\[1\].router must be f32 or f16"),
        (
            {"experts": [*experts[:4], replace(experts[4], down=experts[4].gate_up)]},
            r"layers\[1\].experts\[4\].down must have shape \[48, 40\], got \[80, 48\]",
        ),
        ({"experts": [*experts[:4], other.experts[4]]}, r"layers\[1\].experts\[4\].gate_up and down must read"),
    ):
        with pytest.raises(ops.ArgumentError, match=message):
            DecoderPlan(replace(good, layers=[first, replace(second, **changes)]))


def test_the_plan_keeps_what_it_points_into_and_lets_it_go() -> None:
    whole = model()
    cos = whole.layers[0].cos
    assert cos is not None
    alive = weakref.ref(cos)
    plan = DecoderPlan(whole)
    expected = plan.forward(**batch())
    del whole, cos
    gc.collect()
    assert alive() is not None
    assert torch.equal(plan.forward(**batch()), expected)
    del plan
    gc.collect()
    assert alive() is None


def test_the_instruction_set_may_change_between_steps(cpu_implementation: str) -> None:
    """Room for the inputs of products is made for one instruction set."""
    plan, first = DecoderPlan(model("bf16")), cpu.isa()
    for isa in (first, "portable", first):
        cpu.use_isa(isa)
        hidden = plan.forward(**batch())
        assert torch.equal(DecoderPlan(model("bf16")).forward(**batch()), hidden)
        assert torch.equal(DecoderPlan(model("bf16")).logits(hidden), plan.logits(hidden))


@pytest.mark.parametrize("format", FORMATS)
def test_inputs_are_kept_in_another_form_only_where_that_is_read(cpu_implementation: str, format: str) -> None:
    """The work space of 16 tokens is rows of float32, what products read in their place, and what a step takes besides."""
    ops.set_num_threads(1)
    plan = DecoderPlan(model(format))
    plan.forward(**Pool.make(1).arguments([list(range(16))], [range(16)], [15]))
    record = 0 if format == "f32" or (format == "bf16" and not cpu.isa().endswith("bf16")) else 128
    assert record_bytes(format, 48) == record
    floats = (
        3 * 48 + 80 + 48
    )  # residual, its norm, an answer; queries, keys and values, or gates and ups; what is put in o and down
    beside = plan.workspace_bytes - 16 * (4 * floats + record)
    assert 0 < beside <= step_bytes(6, 2, 8, 0, POSITIONS)


def test_calls_at_once_take_turns() -> None:
    ops.set_num_threads(3)
    plan = DecoderPlan(model())
    expected = plan.forward(**batch())
    with ThreadPoolExecutor(5) as callers:
        for result in [callers.submit(lambda: plan.forward(**batch())) for _ in range(40)]:
            assert torch.equal(result.result(timeout=60), expected)


FORK = """
import os, signal, sys, torch
sys.path.insert(0, {support!r})
from kernel_cases import run_alone
from plan_cases import Pool, model
from quire_kernels import ops
from quire_kernels.decoder import DecoderPlan

torch.set_num_threads(1)
ops.set_num_threads(4)
plan = DecoderPlan(model())
batch = Pool.make(1).arguments([list(range(60))], [range(60)], range(60))
expected = plan.forward(**batch).numpy().tobytes()
if os.fork() == 0:
    signal.alarm(60)
    os._exit(0 if plan.forward(**batch).numpy().tobytes() == expected else 3)
print(os.wait()[1], plan.forward(**batch).numpy().tobytes() == expected)
"""


def test_a_forked_child_computes_too() -> None:
    assert run_alone(FORK.format(support=str(Path(plan_cases.__file__).parent))) == (0, "0 True\n", "")
