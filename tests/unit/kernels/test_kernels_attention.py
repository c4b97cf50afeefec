"""Paged attention: right against torch in float64, bit-identical in any batch, chunk and thread, and never out of bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from kernel_cases import ATTENTION_TOLERANCE as TOLERANCE
from kernel_cases import PagedBatch, paged_batch
from quire_kernels import ops

MIXED = [(1, 700), (5, 5), (200, 1500), (33, 64), (0, 9), (1, 1), (70, 583)]


def assert_right(batch: PagedBatch, result: Tensor) -> None:
    torch.testing.assert_close(result.double(), batch.expected(), **TOLERANCE[batch.query.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("heads", "head_size", "block_size"),
    [
        ((9, 3), 64, 16),  # SmolLM2-135M
        ((14, 2), 64, 16),  # Qwen2-0.5B
        ((8, 8), 32, 1),
        ((4, 1), 80, 5),
        ((9, 1), 96, 32),
        ((5, 5), 100, 7),
        ((6, 3), 128, 16),
        ((2, 1), 256, 8),
        ((3, 1), 7, 3),
        ((64, 1), 48, 16),  # more query heads than a tile has rows
    ],
)
def test_equals_torch(
    implementation: str, dtype: torch.dtype, heads: tuple[int, int], head_size: int, block_size: int
) -> None:
    batch = paged_batch(
        [(1, 700), (5, 5), (70, 583), (0, 9), (1, 1)],
        heads=heads,
        head_size=head_size,
        block_size=block_size,
        dtype=dtype,
        padding=2,
    )
    result = batch.run()
    assert_right(batch, result)
    assert not result[-2:].any()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_equals_torch_for_any_shape(cpu_implementation: str, data: st.DataObject) -> None:
    lengths = data.draw(
        st.lists(
            st.integers(0, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, n + 560))), min_size=1, max_size=4
        )
    )
    kv_heads = data.draw(st.integers(1, 3))
    batch = paged_batch(
        lengths,
        heads=(kv_heads * data.draw(st.integers(1, 5)), kv_heads),
        head_size=data.draw(st.integers(1, 130)),
        block_size=data.draw(st.integers(1, 32)),
        dtype=data.draw(st.sampled_from(list(TOLERANCE))),
        cache_dtype=data.draw(st.sampled_from(list(TOLERANCE))),
        padding=data.draw(st.integers(0, 3)),
    )
    batch = replace(
        batch,
        window=data.draw(st.sampled_from([0, 0, 1, 2, 7, 63, 64, 65, 200, 513, 10_000])),
        softcap=data.draw(st.sampled_from([0.0, 0.0, 0.5, 3.0, 50.0])),
    )
    ops.set_num_threads(data.draw(st.integers(1, 4)))
    assert_right(batch, batch.run())


@pytest.mark.parametrize("window", [1, 5, 64, 511, 600, 2**40])
@pytest.mark.parametrize(("heads", "head_size"), [((9, 3), 64), ((4, 1), 80), ((4, 2), 256)])
def test_windows(implementation: str, window: int, heads: tuple[int, int], head_size: int) -> None:
    lengths = [(1, 1300), (5, 5), (300, 1100), (33, 64), (1, 1), (70, 583)]
    batch = replace(paged_batch(lengths, heads=heads, head_size=head_size), window=window)
    assert_right(batch, batch.run())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("softcap", "window"), [(50.0, 0), (2.0, 0), (0.01, 0), (30.0, 70)])
def test_softcaps(implementation: str, dtype: torch.dtype, softcap: float, window: int) -> None:
    batch = replace(paged_batch([(1, 700), (70, 583), (1, 1)], dtype=dtype), softcap=softcap, window=window)
    batch = replace(batch, query=batch.query * 2)  # scores from tiny ones to beyond a cap of 2
    assert_right(batch, batch.run())


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (0, 20.0), (3, 0.0), (100, 0.0), (513, 20.0)])
def test_a_sequence_has_the_same_bits_in_any_company(
    cpu_implementation: str, dtype: torch.dtype, window: int, softcap: float
) -> None:
    batch = replace(paged_batch(MIXED, dtype=dtype), window=window, softcap=softcap)
    together = batch.run()
    for threads in (1, 2, 4):
        ops.set_num_threads(threads)
        assert torch.equal(batch.run(), together)
        for sequence in range(len(MIXED)):
            assert torch.equal(batch.alone(sequence).run(), together[batch.rows(sequence)])


@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (0, 20.0), (3, 0.0), (100, 0.0), (513, 20.0)])
def test_a_prompt_has_the_same_bits_however_it_is_chunked(cpu_implementation: str, window: int, softcap: float) -> None:
    context = 1200
    whole = paged_batch([(context, context)], dtype=torch.bfloat16, heads=(6, 2))
    whole = replace(whole, window=window, softcap=softcap)
    result = whole.run()
    for chunks in ([1199, 1], [500, 12, 600, 88], [64] * 18 + [48]):
        begin = 0
        for size in chunks:
            part = replace(
                whole,
                query=whole.query[begin : begin + size],
                query_start=torch.tensor([0, size], dtype=torch.int32),
                context_lens=torch.tensor([begin + size], dtype=torch.int32),
            )
            assert torch.equal(part.run(), result[begin : begin + size])
            begin += size
    for token in (0, 1, 63, 64, 511, 512, 1023):  # a decode step at that position
        step = replace(
            whole,
            query=whole.query[token : token + 1],
            query_start=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=torch.tensor([token + 1], dtype=torch.int32),
        )
        assert torch.equal(step.run(), result[token : token + 1])


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_later_tokens_do_not_leak(cpu_implementation: str, poison: float) -> None:
    batch = paged_batch([(90, 100)], heads=(3, 3), block_size=4)
    expected = batch.run()
    last = int(batch.block_tables[0, 99 // 4])
    batch.value_cache[last, 99 % 4] = poison
    batch.key_cache[last, 99 % 4] = poison
    assert torch.equal(batch.run()[:-1], expected[:-1])


def plain_soft_max(batch: PagedBatch) -> Tensor:
    """The formula in float64, for one sequence, where what is infinite or NaN goes the way of the arithmetic."""
    context, block_size = int(batch.context_lens[0]), batch.key_cache.shape[1]
    tokens = torch.arange(context)
    blocks = batch.block_tables[0].long()[tokens // block_size]
    group = batch.query.shape[1] // batch.key_cache.shape[2]
    keys, values = (
        cache[blocks, tokens % block_size].double().repeat_interleave(group, dim=1)
        for cache in (batch.key_cache, batch.value_cache)
    )
    scores = torch.einsum("qhd,khd->qhk", batch.query.double(), keys) * batch.scale
    hidden = tokens[None, :] > torch.arange(context - len(scores), context)[:, None]
    return torch.einsum("qhk,khd->qhd", scores.masked_fill(hidden[:, None], -float("inf")).softmax(dim=-1), values)


def slot(batch: PagedBatch, token: int) -> tuple[int, int]:
    block_size = batch.key_cache.shape[1]
    return int(batch.block_tables[0, token // block_size]), token % block_size


PAYLOAD = torch.tensor([0x7F800155], dtype=torch.int32).view(torch.float32).item()  # a NaN as no instruction makes it
BROKEN = [float("nan"), -float("nan"), PAYLOAD, float("inf"), -float("inf")]


def assert_right_or_nan(batch: PagedBatch, nan_rows: int) -> None:
    expected = plain_soft_max(batch)
    assert int(expected.isnan().all(dim=2).any(dim=1).sum()) == nan_rows
    for threads in (1, 4):
        ops.set_num_threads(threads)
        torch.testing.assert_close(batch.run().double(), expected, equal_nan=True, **TOLERANCE[batch.query.dtype])


@pytest.mark.parametrize("value", BROKEN, ids=str)
@pytest.mark.parametrize(("count", "row", "head_size"), [(1, 0, 64), (20, 9, 33)])
def test_a_broken_query_is_a_nan_answer(
    implementation: str, count: int, row: int, head_size: int, value: float
) -> None:
    batch = paged_batch([(count, 1100)], heads=(4, 2), head_size=head_size)
    batch.query[row, 1, 5] = value
    assert_right_or_nan(batch, nan_rows=1)


@pytest.mark.parametrize(
    ("value", "dtype"), [*((value, torch.float32) for value in BROKEN), (BROKEN[0], torch.bfloat16)], ids=str
)
@pytest.mark.parametrize("token", [0, 63, 64, 600, 1090, 1099])
def test_a_broken_key_is_a_nan_answer_to_all_that_see_it(
    cpu_implementation: str, token: int, value: float, dtype: torch.dtype
) -> None:
    batch = paged_batch([(20, 1100)], heads=(3, 3), dtype=dtype)
    batch.key_cache[slot(batch, token)] = value
    # Of a head's product with an infinite key all signs occur in the query, so it is NaN.
    assert_right_or_nan(batch, nan_rows=min(20, 1100 - token))


@pytest.mark.parametrize("infinite", [1, 64, 130, 520])
def test_scores_of_minus_infinity_weigh_nothing_and_nothing_else_is_nan(implementation: str, infinite: int) -> None:
    batch = paged_batch([(550, 550)], heads=(1, 1))
    batch.query.abs_()
    for token in range(infinite):
        batch.key_cache[slot(batch, token)] = -float("inf")
    assert_right_or_nan(batch, nan_rows=infinite)


@pytest.mark.parametrize("token", [0, 700])
def test_a_score_of_infinity_is_not_the_answer(implementation: str, token: int) -> None:
    batch = paged_batch([(5, 900)], heads=(2, 2))
    batch.query.abs_()
    batch.key_cache[slot(batch, token)] = float("inf")
    assert_right_or_nan(batch, nan_rows=5)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("threads", [1, 4])
def test_tokens_that_left_the_window_do_not_leak(cpu_implementation: str, poison: float, threads: int) -> None:
    ops.set_num_threads(threads)
    batch = replace(paged_batch([(700, 1400)], heads=(3, 3), block_size=4), window=70)
    expected = batch.run()
    for token in (*range(600), 731):  # the first query is at 700 and sees from 631 on; 801 is the first without 731
        block = int(batch.block_tables[0, token // 4])
        batch.value_cache[block, token % 4] = poison
        batch.key_cache[block, token % 4] = poison
    assert torch.equal(batch.run()[:31], expected[:31])
    assert torch.equal(batch.run()[101:], expected[101:])


def test_strided_arguments(implementation: str) -> None:
    batch = paged_batch([(3, 40), (1, 17)])
    expected = batch.run()
    fused = torch.randn(4, 9 + 6, 64)
    fused[:, :9] = batch.query
    pool = torch.stack([batch.key_cache, batch.value_cache], dim=1)  # [N, 2, B, Hkv, D]
    heads_first = pool.transpose(2, 3).contiguous().transpose(2, 3)  # [N, 2, Hkv, B, D] in memory
    wide = torch.full((4, 9, 100), 7.0)
    for cache in (pool, heads_first):
        strided = replace(batch, query=fused[:, :9], key_cache=cache[:, 0], value_cache=cache[:, 1])
        out = wide[:, :, :64]
        assert strided.run(out).data_ptr() == wide.data_ptr()
        assert torch.equal(out, expected)
    assert bool((wide[:, :, 64:] == 7.0).all())


def test_large_scores_do_not_overflow(implementation: str) -> None:
    batch = paged_batch([(4, 150)])
    batch = replace(batch, query=batch.query * 1e4)
    assert_right(batch, batch.run())


def test_nothing_to_do(implementation: str) -> None:
    assert paged_batch([]).run().shape == (0, 9, 64)
    assert not paged_batch([(0, 5), (0, 0)], padding=3).run().any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda b: b.block_tables[1].__setitem__(2, b.key_cache.shape[0]),
            r"block_tables\[1\]\[2\] is 7, outside 0\.\.6",
        ),
        (lambda b: b.block_tables[0].__setitem__(0, -1), r"block_tables\[0\]\[0\] is -1, outside 0\.\.6"),
        (lambda b: b.context_lens.__setitem__(1, 81), r"context_lens\[1\] is 81, more than the 80 slots"),
        (lambda b: b.context_lens.__setitem__(1, 2), r"context_lens\[1\] is 2, less than .* 4 query tokens"),
        (lambda b: b.query_start.__setitem__(1, 9), r"query_start must not decrease, but does at sequence 1"),
        (lambda b: b.query_start.__setitem__(0, 1), r"query_start must begin with 0"),
        (lambda b: b.query_start.__setitem__(2, 6), r"query_start .* end at most at the 5 rows of query, got 0\.\.6"),
    ],
)
def test_values_out_of_bounds_are_refused(implementation: str, change: object, message: str) -> None:
    batch = paged_batch([(1, 20), (4, 48)])
    assert batch.key_cache.shape[0] == 7 and batch.block_tables.shape[1] == 4
    batch = replace(batch, block_tables=torch.cat([batch.block_tables, batch.block_tables[:, :1]], dim=1))
    assert callable(change)
    change(batch)
    with pytest.raises(ops.ArgumentError, match=message):
        batch.run()
