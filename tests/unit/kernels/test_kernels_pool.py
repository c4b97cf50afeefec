"""The thread pool: concurrent callers, a changed size, a forked child; nothing hangs and nothing changes a result."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import quire_kernels
from kernel_cases import paged_batch
from quire_kernels import cpu, ops


def work() -> torch.Tensor:
    return paged_batch([(40, 900), (1, 1500), (1, 30)]).run()


@pytest.fixture(autouse=True)
def four_threads() -> object:
    before = cpu.num_threads()
    ops.set_num_threads(4)
    yield
    ops.set_num_threads(before)


def test_starts_with_the_cpus_of_the_process() -> None:
    process = multiprocessing.get_context("spawn").Pool(1)
    with process as pool:
        assert pool.apply(ops.num_threads) == len(os.sched_getaffinity(0))


def test_callers_at_once_get_what_they_would_get_alone() -> None:
    expected = work()
    with ThreadPoolExecutor(6) as callers:
        for result in [callers.submit(work) for _ in range(60)]:
            assert torch.equal(result.result(timeout=60), expected)


def test_the_size_may_change_while_others_compute() -> None:
    expected = work()
    with ThreadPoolExecutor(2) as callers:
        results = [callers.submit(work) for _ in range(40)]
        for size in range(1, 9):
            ops.set_num_threads(size)
            assert ops.num_threads() == size
        for result in results:
            assert torch.equal(result.result(timeout=60), expected)


def test_many_small_loops_in_a_row() -> None:
    x, weight = torch.randn(512, 576), torch.randn(576)
    expected = ops.rms_norm(x, weight, 1e-5)
    for _ in range(3000):
        ops.rms_norm(x, weight, 1e-5, out=(result := torch.empty_like(x)))
    assert torch.equal(result, expected)


FORK = """
import os, signal, torch
from quire_kernels import ops

ops.set_num_threads(4)
x, weight, out = torch.randn(512, 576), torch.randn(576), torch.empty(512, 576)
expected = ops.rms_norm(x, weight, 1e-5).numpy().tobytes()
if os.fork() == 0:
    signal.alarm(60)  # the child ends itself if it hangs; torch's own threads do not survive a fork, so it uses none
    ops.rms_norm(x, weight, 1e-5, out)
    os._exit(0 if out.numpy().tobytes() == expected else 3)
status = os.wait()[1]
ops.rms_norm(x, weight, 1e-5, out)
print(status, out.numpy().tobytes() == expected)
"""


def test_a_forked_child_makes_its_own_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK],
        env={**os.environ, "PYTHONPATH": str(Path(quire_kernels.__file__).parents[1]), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("0 True\n", "")
