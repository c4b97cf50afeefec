"""What this machine allows: bytes a second from memory, operations a second in matrix products, with torch's own operators.

    python benchmarks/limits.py [--threads 2]

Best and median of many runs. Reading is a vector times 512 MB of float32 weights, which is how decoding at batch 1 reads a model;
torch may fall short of what the memory gives, so a kernel can come out above it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from quire.bench import machine
from quire.engine import host

SIDE = 2048


def times_s(call: Callable[[], object], budget_s: float = 1.5) -> list[float]:
    """Seconds of each call, as many as fit in the budget, five at least."""
    call()
    taken: list[float] = []
    while len(taken) < 5 or sum(taken) < budget_s:
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return taken


def report(what: str, taken: list[float], amount: float, unit: str) -> None:
    print(
        f"{what:<36} best {amount / min(taken):8.1f}, median {amount / statistics.median(taken):8.1f} {unit}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=host.cpu_threads(), help="default: what this process may use")
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    name, flags = machine.cpu()
    print(f"{name}, {threads} threads, {' '.join(flags)}, torch {torch.__version__}")
    weights, vector = torch.ones(1 << 15, 1 << 12), torch.ones(1 << 12)
    report(
        "memory, read (matrix times vector)", times_s(lambda: torch.mv(weights, vector)), weights.nbytes / 1e9, "GB/s"
    )
    source, target = weights.view(-1)[: 1 << 26], weights.view(-1)[1 << 26 :]
    report("memory, copy", times_s(lambda: target.copy_(source)), 2 * source.nbytes / 1e9, "GB/s")
    operations = 2 * SIDE**3 / 1e9
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    report(f"product float32 {SIDE}^3", times_s(lambda: torch.mm(left, right)), operations, "GFLOP/s")
    half = left.bfloat16(), right.bfloat16()
    report(f"product bfloat16 {SIDE}^3", times_s(lambda: torch.mm(*half)), operations, "GFLOP/s")
    small = tuple(torch.randint(-128, 127, (SIDE, SIDE), dtype=torch.int8) for _ in range(2))
    report(f"product int8 {SIDE}^3", times_s(lambda: torch._int_mm(*small)), operations, "Gop/s")


if __name__ == "__main__":
    main()
