"""Did a change make the engine slower? `make bench-check`: ratios to yardsticks, measured in pairs, against recorded ones.

    python benchmarks/check.py [--record] [--only decode]

A case is CPU time of the engine divided by CPU time of a yardstick, a fixed piece of work that the change cannot touch (a loop of plain
Python, or torch's own product with one thread). Both are timed in turn many times and the median of the ratios counts, so that neither
the machine's speed nor its load moves it much. Ratios still depend on the kind of CPU: `check.json` holds them for each, and a
case fails where it is more than TOLERANCE above. On a kind that is not there `--record` writes them, best before the change.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from quire.api.llm_engine import LLMEngine
from quire.bench import machine
from quire.bench.scheduler import decoding, step
from quire.bench.stats import paired_ratio
from quire.bench.workloads import text
from quire.config import EngineConfig
from quire.request import SamplingParams

TOLERANCE = 0.15
RECORD = Path(__file__).with_name("check.json")
PAIRS = 25
PREFILL = 128

Timed = Callable[[], float]
"""Runs once; CPU seconds it took."""


def own_cpu(action: Callable[[], object]) -> float:
    """CPU seconds of this thread; everything measured here runs in one."""
    began = time.thread_time()
    action()
    return time.thread_time() - began


def plain_python() -> Timed:
    """Dicts, lists and attributes, as bookkeeping is made of."""

    def work() -> None:
        held: dict[int, list[int]] = {}
        for index in range(4000):
            held.setdefault(index % 97, []).append(index)
        for numbers in held.values():
            numbers.sort(reverse=True)

    return lambda: own_cpu(work)


def streaming() -> Timed:
    """A vector times 64 MB of weights, more than most last-level caches: bound by memory, as decoding is."""
    weights, vector = torch.ones(4096, 4096), torch.ones(4096)
    return lambda: own_cpu(lambda: torch.mv(weights, vector))


def product() -> Timed:
    """A product of matrices: bound by arithmetic, as prompts are."""
    left, right = torch.ones(PREFILL, 2048), torch.ones(2048, 2048)
    return lambda: own_cpu(lambda: torch.mm(left, right))


def interpreter() -> Timed:
    """The import of torch in a process of its own."""
    return lambda: _child_cpu("import torch")


def scheduler() -> Timed:
    """Schedule and update of 256 decoding sequences."""
    subject = decoding(True, num_seqs=256, steps=PAIRS + 5)
    return lambda: own_cpu(lambda: step(subject))


def _engine() -> LLMEngine:
    return LLMEngine(
        EngineConfig.model_validate({"cpu_threads": 1, "num_blocks": 512, "max_num_batched_tokens": PREFILL})
    )


def decode() -> Timed:
    """One step of one sequence of the embedded model."""
    engine = _engine()
    params = SamplingParams(temperature=0.0, max_tokens=4 * PAIRS, ignore_eos=True)
    engine.add_request("0", {"prompt_token_ids": _prompt(engine, 64, 0)}, params)
    for _ in range(4):
        engine.step()
    return lambda: own_cpu(engine.step)


def prefill() -> Timed:
    """The step of a prompt of PREFILL tokens, never the same one."""
    engine, numbers = _engine(), itertools.count()
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)

    def once() -> float:
        number = next(numbers)
        engine.add_request(str(number), {"prompt_token_ids": _prompt(engine, PREFILL, number)}, params)
        return own_cpu(engine.step)

    return once


def serving_imports() -> Timed:
    """The imports of the engine's process and of the server's, one after the other."""
    return lambda: _child_cpu("import quire.engine.process") + _child_cpu("import quire.entrypoints.serve")


def _prompt(engine: LLMEngine, length: int, seed: int) -> list[int]:
    return text(lambda words: engine.tokenizer.encode(words, add_special_tokens=False), length, seed)


def _child_cpu(code: str) -> float:
    """User and system seconds of a fresh interpreter."""
    report = "import os; t = os.times(); print(t.user + t.system)"
    out = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], check=True, capture_output=True, text=True)
    return float(out.stdout)


CASES: dict[str, tuple[Callable[[], Timed], Callable[[], Timed], int]] = {
    "scheduler": (scheduler, plain_python, PAIRS),
    "decode": (decode, streaming, PAIRS),
    "prefill": (prefill, product, PAIRS),
    "imports": (serving_imports, interpreter, 5),
}
"""Name to what is measured, its yardstick, and how many pairs."""


def measured(wanted: list[str]) -> Iterator[tuple[str, float]]:
    """Name and ratio of each case; the first pair is a warm-up."""
    for name in wanted:
        make_subject, make_yardstick, pairs = CASES[name]
        subject, yardstick = make_subject(), make_yardstick()
        times = [(subject(), yardstick()) for _ in range(pairs + 1)][1:]
        yield name, paired_ratio([ours for ours, _ in times], [theirs for _, theirs in times])


def kind(flags: list[str]) -> str:
    """What ratios are recorded by: the best instruction set."""
    order = ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "sve", "asimd")
    return next((flag for flag in order if flag in flags), "other")


def verdict(ratio: float, bound: float | None) -> tuple[bool, str]:
    """Whether a ratio passes, and in words."""
    if bound is None:
        return True, "nothing recorded for this kind of CPU: run with --record"
    change = ratio / bound - 1
    return change <= TOLERANCE, f"recorded {bound:.3f}, {change:+.0%}: " + ("pass" if change <= TOLERANCE else "FAIL")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=list(CASES), action="append", help="repeat for several; default: all")
    parser.add_argument("--record", action="store_true", help="write the ratios of this machine instead of comparing")
    given = parser.parse_args()
    torch.set_num_threads(1)
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    here = kind(machine.cpu()[1])
    bounds = known.setdefault(here, {})
    failed = False
    for name, ratio in measured(given.only or list(CASES)):
        passed, words = verdict(ratio, bounds.get(name))
        failed = failed or not passed
        print(f"{here:<12} {name:<10} {ratio:8.3f} yardsticks; {'recorded' if given.record else words}", flush=True)
        if given.record:
            bounds[name] = round(ratio, 3)
    if given.record:
        RECORD.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    return int(failed and not given.record)


if __name__ == "__main__":
    sys.exit(main())
