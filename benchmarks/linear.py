"""Micro benchmark of products with packed weights beside oneDNN's prepacked fp32 product.

    python benchmarks/linear.py [--threads 2] [--rows 1 8 64] [--formats q4 q8] [--shapes gate_up head] [--isa avx2]

The shapes are those of SmolLM2-135M and of Qwen2-0.5B. At one row a product is bound by memory: each call takes the next of
as many copies of the weight as exceed the caches, and GB/s of packed bytes is what counts; with more rows it is Gop/s (two
for a multiply-add). Ours and torch's calls alternate, so that what else the machine does hits both; the best of many counts.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from quire_kernels import cpu, ops

SHAPES = {
    "qkv": (960, 576),
    "o": (576, 576),
    "gate_up": (3072, 576),
    "down": (576, 1536),
    "head": (49152, 576),
    "qwen_gate_up": (9728, 896),
    "qwen_down": (896, 4864),
}
FORMATS = ("f32", "bf16", "q8", "q4")
CACHES = 96 * 1024 * 1024
"""Bytes of weights that no cache holds."""


def rotating(make: Callable[[], Callable[[Tensor], object]], num_bytes: int, rows: int) -> Callable[[Tensor], object]:
    """The product with the next copy of the weight at each call; a single copy where many rows share it."""
    copies = [make() for _ in range(-(-CACHES // num_bytes) if rows == 1 else 1)]
    turn = itertools.cycle(copies)
    return lambda x: next(turn)(x)


def best_us(calls: list[Callable[[], object]], budget_s: float) -> list[float]:
    """The shortest time of each, the calls taking turns."""
    best = [float("inf")] * len(calls)
    end = time.process_time() + budget_s * len(calls)
    count = 0
    while count < 5 or time.process_time() < end:
        for i, call in enumerate(calls):
            begin = time.perf_counter()
            call()
            best[i] = min(best[i], time.perf_counter() - begin)
        count += 1
    return [1e6 * each for each in best]


def onednn(weight: Tensor, rows: int) -> Callable[[Tensor], object]:
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def ours(weight: Tensor, format: str) -> tuple[Callable[[Tensor], object], int]:
    packed = ops.pack_weight(weight, format)
    return lambda x: ops.packed_linear(x, packed), packed.nbytes


def report(name: str, rows: int, formats: list[str], budget_s: float) -> None:
    outputs, inputs = SHAPES[name]
    weight, x = torch.randn(outputs, inputs) * inputs**-0.5, torch.randn(rows, inputs)
    sizes = [weight.nbytes]
    calls = [rotating(lambda: onednn(weight, rows), weight.nbytes, rows)]
    for format in formats:
        size = ours(weight, format)[1]
        sizes.append(size)
        calls.append(rotating(lambda f=format: ours(weight, f)[0], size, rows))
    times = best_us([lambda c=call: c(x) for call in calls], budget_s)
    cells = []
    for format, took, size in zip(["onednn", *formats], times, sizes, strict=True):
        rate = (
            f"{size / took / 1e3:5.1f} GB/s" if rows == 1 else f"{2 * rows * outputs * inputs / took / 1e3:5.0f} Gop/s"
        )
        ratio = "" if format == "onednn" else f" x{times[0] / took:.2f}"
        cells.append(f"{format} {took:8.1f} us {rate}{ratio}")
    print(f"{name:>12} M={rows:<4}", " | ".join(cells), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 64, 256])
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=ops.PACKED_FORMATS)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--isa", default="")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds of CPU for each cell")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ops.set_num_threads(options.threads)
    cpu.use_isa(options.isa)
    print(f"{cpu.isa()}, {options.threads} threads, torch {torch.__version__}; ratios are to onednn fp32")
    with torch.inference_mode():
        for name, rows in itertools.product(options.shapes, options.rows):
            report(name, rows, options.formats, options.budget)


if __name__ == "__main__":
    main()
