"""Calls with wrong shapes, types or strides are refused with the same sentence by every implementation."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernel_cases import PagedBatch, paged_batch
from quire_kernels import ops


def attention(**changes: Callable[[PagedBatch], Any]) -> Callable[[], object]:
    def call() -> object:
        batch = paged_batch([(1, 20), (4, 48)])
        return replace(batch, **{name: change(batch) for name, change in changes.items()}).run()

    return call


def write(**changes: torch.Tensor) -> Callable[[], object]:
    arguments = {
        "key": torch.zeros(2, 3, 8),
        "value": torch.zeros(2, 3, 8),
        "key_cache": torch.zeros(4, 5, 3, 8),
        "value_cache": torch.zeros(4, 5, 3, 8),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
    }
    return lambda: ops.write_kv(**(arguments | changes))


def rope(**changes: torch.Tensor) -> Callable[[], object]:
    arguments = {
        "query": torch.zeros(2, 9, 8),
        "key": torch.zeros(2, 3, 8),
        "positions": torch.zeros(2, dtype=torch.int64),
        "cos": torch.zeros(16, 4),
        "sin": torch.zeros(16, 4),
    }
    return lambda: ops.rope(**(arguments | changes))


def linear(x: torch.Tensor, *args: Any, **kwargs: Any) -> Callable[[], object]:
    return lambda: ops.packed_linear(x, ops.pack_weight(torch.zeros(5, 8), "q8"), *args, **kwargs)


X, WEIGHT = torch.zeros(2, 8), torch.zeros(8)

CALLS: list[tuple[Callable[[], object], str]] = [
    (attention(query=lambda b: b.query[0]), "query must have 3 dimensions, got 2"),
    (attention(query=lambda b: b.query.double()), "query (must be float32, bfloat16 or float16|has an element type)"),
    (attention(query=lambda b: b.query.int()), "query must be float32, bfloat16 or float16, got int32"),
    (attention(query=lambda b: b.query[:, :8]), "query has 8 heads, which is not a multiple of key_cache's 3"),
    (attention(query=lambda b: b.query[:, :0]), "query has 0 heads"),
    (attention(query=lambda b: b.query[..., ::2]), "key_cache has head size 64, but the first argument 32|stride 2"),
    (
        attention(query=lambda b: b.query.transpose(1, 2).contiguous().transpose(1, 2)),
        "query .* contiguous .* stride 9",
    ),
    (attention(key_cache=lambda b: b.key_cache[0]), "key_cache must have 4 dimensions, got 3"),
    (attention(key_cache=lambda b: b.key_cache[:, :0]), r"value_cache must have shape \[7, 0, 3, 64\]"),
    (
        attention(key_cache=lambda b: b.key_cache[:, :0], value_cache=lambda b: b.value_cache[:, :0]),
        "key_cache has a block size of 0",
    ),
    (attention(value_cache=lambda b: b.value_cache[:-1]), r"value_cache must have shape \[7, 16, 3, 64\], got \[6, "),
    (attention(value_cache=lambda b: b.value_cache.half()), "value_cache must be float32, got float16"),
    (attention(block_tables=lambda b: b.block_tables.long()), "block_tables must be int32, got int64"),
    (attention(query_start=lambda b: b.query_start[:-1]), r"query_start must have shape \[3\], got \[2\]"),
    (attention(context_lens=lambda b: b.context_lens[:, None]), "context_lens must have 1 dimensions, got 2"),
    (attention(context_lens=lambda b: b.context_lens.long()), "context_lens must be int32, got int64"),
    (lambda: paged_batch([(1, 1)], head_size=513).run(), r"query has head size 513, outside 1\.\.512"),
    (lambda: replace(paged_batch([(1, 1)]), window=-1).run(), r"window must be 0 \(none\) or more, got -1"),
    (lambda: replace(paged_batch([(1, 1)]), softcap=-2.5).run(), r"softcap must be 0 \(none\) or .*, got -2\.5"),
    (lambda: replace(paged_batch([(1, 1)]), softcap=float("inf")).run(), "softcap .* number, got inf"),
    (lambda: replace(paged_batch([(1, 1)]), softcap=float("nan")).run(), "softcap .* number, got nan"),
    (lambda: paged_batch([(1, 1)]).run(torch.zeros(2, 9, 64)), r"out must have shape \[1, 9, 64\], got \[2, 9, 64\]"),
    (lambda: paged_batch([(1, 1)]).run(torch.zeros(1, 9, 64).half()), "out must be float32, got float16"),
    (write(value=torch.zeros(2, 3, 9)), r"value must have shape \[2, 3, 8\], got \[2, 3, 9\]"),
    (write(value=torch.zeros(2, 3, 8).half()), "value must be float32, got float16"),
    (write(key_cache=torch.zeros(4, 5, 2, 8), value_cache=torch.zeros(4, 5, 2, 8)), "key has 3 heads, but key_cache 2"),
    (write(slot_mapping=torch.zeros(2, dtype=torch.int32)), "slot_mapping must be int64, got int32"),
    (write(slot_mapping=torch.zeros(3, dtype=torch.int64)), r"slot_mapping must have shape \[2\], got \[3\]"),
    (rope(key=torch.zeros(3, 3, 8)), r"key must have shape \[2, 3, 8\], got \[3, 3, 8\]"),
    (rope(cos=torch.zeros(16, 5), sin=torch.zeros(16, 5)), "cos has 5 columns, more than half of the head size 8"),
    (rope(sin=torch.zeros(15, 4)), r"sin must have shape \[16, 4\], got \[15, 4\]"),
    (rope(cos=torch.zeros(16, 4).half()), "cos must be float32, got float16"),
    (rope(positions=torch.zeros(2, dtype=torch.int32)), "positions must be int64, got int32"),
    (lambda: ops.rms_norm(X, WEIGHT[1:], 1e-5), r"weight must have shape \[8\], got \[7\]"),
    (lambda: ops.rms_norm(X, WEIGHT.half(), 1e-5), "weight must be float32, got float16"),
    (lambda: ops.rms_norm(X[0], WEIGHT, 1e-5), "x must have 2 dimensions, got 1"),
    (lambda: ops.rms_norm(X, WEIGHT, 1e-5, out=X[:1]), r"out must have shape \[2, 8\], got \[1, 8\]"),
    (lambda: ops.fused_add_rms_norm(X, X.half(), WEIGHT, 1e-5), "residual must be float32, got float16"),
    (
        lambda: ops.head_rms_norm(torch.zeros(2, 9, 8), torch.zeros(2, 3, 7), WEIGHT, WEIGHT, 1e-5),
        r"key must have shape \[2, 3, 8\], got \[2, 3, 7\]",
    ),
    (
        lambda: ops.head_rms_norm(torch.zeros(2, 9, 8), torch.zeros(2, 3, 8), WEIGHT, WEIGHT[1:], 1e-5),
        r"key_weight must have shape \[8\], got \[7\]",
    ),
    (lambda: ops.gelu_tanh_mul(X[:, 1:]), r"gate_up must have an even number of columns .*, got 7"),
    (lambda: ops.silu_mul(X[:, 1:]), r"gate_up must have an even number of columns .*, got 7"),
    (lambda: ops.silu_mul(torch.tensor(1.0)), "gate_up must have 2 dimensions, got 0"),
    (lambda: ops.silu_mul(X[0]), "gate_up must have 2 dimensions, got 1"),
    (lambda: ops.silu_mul(X, out=X), r"out must have shape \[2, 4\], got \[2, 8\]"),
    (lambda: ops.pack_weight(X, "q5"), "format must be f32, f16, bf16, q8 or q4, got 'q5'"),
    (lambda: ops.pack_weight(X[0], "q8"), "weight must have 2 dimensions, got 1"),
    (lambda: ops.pack_weight(X.int(), "q8"), "weight must be float32, bfloat16 or float16, got int32"),
    (lambda: ops.pack_weight(X[:, ::2], "q8"), "weight must be contiguous in its last dimension, got stride 2"),
    (lambda: ops.pack_weight(X[:, :0], "f32"), r"weight must have at least one row and one column, got shape \[2, 0\]"),
    (lambda: ops.pack_weight(X[:0], "q8"), r"weight must have at least one row and one column, got shape \[0, 8\]"),
    (lambda: ops.pack_weights([]), "parts must hold at least one weight, got none"),
    (lambda: ops.pack_weights([(X, "q4"), (X, "q5")]), "format must be f32, f16, bf16, q8 or q4, got 'q5'"),
    (
        lambda: ops.pack_weights([(X, "q4"), (X[:, :7], "q8")]),
        "all parts of a packed weight must have 8 columns, got 7",
    ),
    (lambda: ops.pack_weights([(X, "q4"), (X, "f32")]), "parts that read their input in different forms"),
    (lambda: ops.pack_weights([(X, "q4")], WEIGHT[1:]), r"importance must have shape \[8\], got \[7\]"),
    (lambda: ops.pack_weights([(X, "q4")], WEIGHT.half()), "importance must be float32, got float16"),
    (lambda: ops.pack_weights([(X, "q4")], WEIGHT / 0 - WEIGHT / 0), "importance must be finite and not negative"),
    (lambda: ops.pack_weights([(X, "q4")], -WEIGHT.abs() - 1), "importance must be finite and not negative"),
    (lambda: ops.pack_gguf([(X, ops.GgmlType.Q8_0, 1)], 32), "raw must have 1 dimensions, got 2"),
    (lambda: ops.pack_gguf([(X[0], ops.GgmlType.F32, 1)], 2), "raw must be uint8, got float32"),
    (linear(X[:, :7]), r"x must have shape \[2, 8\], got \[2, 7\]"),
    (linear(X[0]), "x must have 2 dimensions, got 1"),
    (linear(X.bfloat16()), "x must be float32, got bfloat16"),
    (linear(torch.zeros(2, 16)[:, ::2]), "x must be contiguous in its last dimension, got stride 2"),
    (linear(X, X[0]), r"bias must have shape \[5\], got \[8\]"),
    (linear(X, X[:, :5]), "bias must have 1 dimensions, got 2"),
    (linear(X, X[0, :5].half()), "bias must be float32, got float16"),
    (linear(X, torch.zeros(10)[::2]), "bias must be contiguous in its last dimension, got stride 2"),
    (linear(X, out=torch.zeros(2, 8)), r"out must have shape \[2, 5\], got \[2, 8\]"),
    (linear(X, out=torch.zeros(2, 5).half()), "out must be float32, got float16"),
    (lambda: ops.packed_linear(X, X), r"packed must be a weight that this implementation packed, got .*Tensor"),
    (lambda: ops.set_num_threads(0), "num_threads must be between 1 and 1024, got 0"),
]


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_refused(implementation: str, call: Callable[[], object], message: str) -> None:
    with pytest.raises(ops.ArgumentError, match=message):
        call()


def test_a_type_of_tensors_lives_while_the_extension_knows_it(cpu_implementation: str) -> None:
    def kind() -> type[torch.Tensor]:
        return type("Kind", (torch.Tensor,), {})

    def use(out: torch.Tensor) -> None:  # the last tensor that is borrowed
        ops.silu_mul(X, out=out)

    known = kind()
    alive = weakref.ref(known)
    use(torch.empty(2, 4).as_subclass(known))
    del known
    gc.collect()
    assert alive() is not None
    use(torch.empty(2, 4))
    gc.collect()
    assert alive() is None
