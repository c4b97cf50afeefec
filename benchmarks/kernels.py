"""Micro benchmark of the CPU kernels beside torch's own operators.

    python benchmarks/kernels.py [--dtype bfloat16] [--threads 2] [--only decode]

Decode is bound by memory: GB/s of keys and values read. Prefill is bound by arithmetic: GFLOP/s of the causal half.
The torch column gathers the blocks outside the clock and runs `scaled_dot_product_attention` on contiguous keys, so it is
flattered by what paging costs. Every figure is the best of several runs; small caches then come from L2 or L3, the largest from memory.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from quire_kernels import cpu, ops

SMOL = (9, 3, 64)  # query heads, KV heads, head size of SmolLM2-135M
BLOCK_SIZE = 16


def best_s(call: Callable[[], object], budget_s: float = 0.4) -> float:
    """The shortest of as many calls as fit in the budget, three at least."""
    call()
    best, spent, count = float("inf"), 0.0, 0
    while count < 3 or spent < budget_s:
        begin = time.perf_counter()
        call()
        took = time.perf_counter() - begin
        best, spent, count = min(best, took), spent + took, count + 1
    return best


def attention(batch: int, query_len: int, context: int, dtype: torch.dtype) -> tuple[float, float]:
    """Seconds of ours and of torch."""
    heads, kv_heads, head_size = SMOL
    columns = -(-context // BLOCK_SIZE)
    cache = torch.randn(2, batch * columns, BLOCK_SIZE, kv_heads, head_size).to(dtype)
    tables = torch.randperm(batch * columns).int().view(batch, columns)
    query = torch.randn(batch * query_len, heads, head_size).to(dtype)
    starts = torch.arange(0, batch * query_len + 1, query_len, dtype=torch.int32)
    contexts = torch.full((batch,), context, dtype=torch.int32)
    out = torch.empty_like(query)
    scale = head_size**-0.5

    def ours() -> Tensor:
        return ops.paged_attention(query, cache[0], cache[1], tables, starts, contexts, scale, out)

    dense = cache[:, tables.long()].flatten(2, 3)[:, :, :context].transpose(2, 3)  # [2, batch, kv_heads, context, D]
    rows = query.view(batch, query_len, heads, head_size).transpose(1, 2)
    visible = torch.ones(query_len, context, dtype=torch.bool).tril(context - query_len)
    folded = rows.reshape(batch, kv_heads, -1, head_size)  # query heads of one KV head as rows: torch's fastest form

    def torch_s() -> Tensor:
        if query_len == 1:
            return scaled_dot_product_attention(folded, dense[0], dense[1], scale=scale)
        return scaled_dot_product_attention(rows, dense[0], dense[1], attn_mask=visible, scale=scale, enable_gqa=True)

    return best_s(ours), best_s(torch_s)


def report_decode(dtype: torch.dtype) -> None:
    print(f"\ndecode, {dtype}, heads {SMOL[0]}/{SMOL[1]}, head size {SMOL[2]}, block {BLOCK_SIZE}")
    print(f"{'batch':>6} {'context':>8} {'ours us':>9} {'GB/s':>6} {'torch us':>9} {'GB/s':>6} {'ratio':>6}")
    for batch, context in [(1, 256), (1, 2048), (1, 8192), (16, 256), (64, 256), (64, 1024)]:
        ours, theirs = attention(batch, 1, context, dtype)
        size = 2 * batch * context * SMOL[1] * SMOL[2] * dtype.itemsize
        print(
            f"{batch:>6} {context:>8} {ours * 1e6:>9.0f} {size / ours / 1e9:>6.1f} {theirs * 1e6:>9.0f} "
            f"{size / theirs / 1e9:>6.1f} {theirs / ours:>6.2f}"
        )


def report_prefill(dtype: torch.dtype) -> None:
    print(f"\nprefill, {dtype}")
    print(f"{'query':>6} {'context':>8} {'ours us':>9} {'GFLOP/s':>8} {'torch us':>9} {'GFLOP/s':>8} {'ratio':>6}")
    for query_len, context in [(128, 128), (512, 512), (512, 2048), (2048, 2048)]:
        ours, theirs = attention(1, query_len, context, dtype)
        pairs = query_len * context - query_len * (query_len - 1) / 2
        flops = 4 * pairs * SMOL[0] * SMOL[2]
        print(
            f"{query_len:>6} {context:>8} {ours * 1e6:>9.0f} {flops / ours / 1e9:>8.0f} {theirs * 1e6:>9.0f} "
            f"{flops / theirs / 1e9:>8.0f} {theirs / ours:>6.2f}"
        )


def row_kernels(rows: int, dtype: torch.dtype) -> list[tuple[str, Callable[[], object], Callable[[], object], int]]:
    """Name, ours, torch's, and elements read and written per row."""
    x, residual, weight = torch.randn(rows, 576).to(dtype), torch.randn(rows, 576).to(dtype), torch.ones(576).to(dtype)
    gate_up, out, narrow = torch.randn(rows, 3072).to(dtype), torch.empty_like(x), torch.empty(rows, 1536).to(dtype)
    return [
        (
            "rms_norm",
            lambda: ops.rms_norm(x, weight, 1e-5, out),
            lambda: rms_norm(x, (576,), weight, 1e-5),
            2 * 576,
        ),
        (
            "fused_add_rms_norm",
            lambda: ops.fused_add_rms_norm(x, residual, weight, 1e-5, out),
            lambda: rms_norm(residual.add_(x), (576,), weight, 1e-5),
            4 * 576,
        ),
        (
            "silu_mul",
            lambda: ops.silu_mul(gate_up, narrow),
            lambda: silu(gate_up[:, :1536]) * gate_up[:, 1536:],
            3 * 1536,
        ),
    ]


def report_rows(dtype: torch.dtype) -> None:
    print(f"\nrows, {dtype}, hidden 576, intermediate 1536")
    print(f"{'kernel':>20} {'rows':>6} {'ours us':>9} {'GB/s':>6} {'torch us':>9} {'ratio':>6}")
    for rows in (1, 64, 2048):
        for name, ours_call, torch_call, elements in row_kernels(rows, dtype):
            ours, theirs = best_s(ours_call, 0.1), best_s(torch_call, 0.1)
            size = rows * elements * dtype.itemsize
            print(
                f"{name:>20} {rows:>6} {ours * 1e6:>9.1f} {size / ours / 1e9:>6.1f} {theirs * 1e6:>9.1f} "
                f"{theirs / ours:>6.2f}"
            )


def report_gguf(dtype: torch.dtype) -> None:
    print(f"\ndequantize_gguf to {dtype}, 49152 x 576")
    elements = 49152 * 576
    for kind in ops.GgmlType:
        per_block, size = ops.GGML_BLOCKS[kind]
        raw = torch.randint(0, 60, (elements // per_block * size,), dtype=torch.uint8)
        took = best_s(lambda raw=raw, kind=kind: ops.dequantize_gguf(raw, kind, elements, dtype), 0.1)  # type: ignore[misc]
        print(f"{kind.name:>20} {took * 1e3:>9.1f} ms {elements / took / 1e9:>6.2f} G elements/s")


REPORTS: dict[str, Callable[[torch.dtype], None]] = {
    "decode": report_decode,
    "prefill": report_prefill,
    "rows": report_rows,
    "gguf": report_gguf,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both; default: torch's")
    parser.add_argument("--only", choices=list(REPORTS), action="append", help="repeat for several; default: all")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    ops.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    print(f"implementation {ops.selection().kernels.NAME}, instruction set {cpu.isa()}, threads {arguments.threads}")
    for name in arguments.only or list(REPORTS):
        REPORTS[name](getattr(torch, arguments.dtype))


if __name__ == "__main__":
    main()
