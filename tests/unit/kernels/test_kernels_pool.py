"""The thread pool: concurrent callers, a changed size, a forked child; nothing hangs and nothing changes a result."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

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
        assert pool.apply(cpu.num_threads) == len(os.sched_getaffinity(0))


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


def test_a_forked_child_makes_its_own_threads() -> None:
    expected = work()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, b"same" if torch.equal(work(), expected) else b"diff")
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        assert answer.read() == b"same"
    assert os.waitpid(child, 0)[1] == 0
