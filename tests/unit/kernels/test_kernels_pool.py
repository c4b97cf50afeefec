"""The thread pool: concurrent callers, a changed size, a forked child; nothing hangs and nothing changes a result."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernel_cases import ADDRESS_SANITIZER, paged_batch, run_alone
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
    assert run_alone(FORK) == (0, "0 True\n", "")


NO_THREADS = """
import resource, torch
from quire_kernels import ops

def limit(name, used, more):
    size = [line for line in open("/proc/self/status") if line.startswith(used)][0]
    hard = resource.getrlimit(name)[1]
    resource.setrlimit(name, (int(size.split()[1]) * 1024 + more if more is not None else hard, hard))

torch.set_num_threads(1)
x, weight, out = torch.randn(512, 576), torch.randn(576), torch.empty(512, 576)
ops.set_num_threads(1)
expected = ops.rms_norm(x, weight, 1e-5)
ops.set_num_threads(4)
limit(resource.RLIMIT_AS, "VmSize", 1 << 20)  # no room for the stack of a thread
ops.rms_norm(x, weight, 1e-5, out)
limit(resource.RLIMIT_AS, "VmSize", None)
print(ops.num_threads(), torch.equal(out, expected))
ops.set_num_threads(4)
ops.rms_norm(x, weight, 1e-5, out.zero_())
print(ops.num_threads(), torch.equal(out, expected))
"""


def test_where_no_thread_can_be_started_those_that_there_are_do_the_work() -> None:
    assert run_alone(NO_THREADS) == (0, "1 True\n4 True\n", "")


NO_MEMORY = """
import ctypes, resource, torch
from quire_kernels import ops

def paged_attention(head_size):
    torch.manual_seed(0)
    cache, query = torch.randn(2, 40, 16, 8, head_size), torch.randn(400, 8, head_size)
    tables, starts = torch.arange(40, dtype=torch.int32)[None], torch.tensor([0, 400], dtype=torch.int32)
    out, lens = torch.empty_like(query), torch.tensor([640], dtype=torch.int32)
    return lambda: ops.paged_attention(query, cache[0], cache[1], tables, starts, lens, 1.0, out)

torch.set_num_threads(1)
malloc = ctypes.CDLL(None).malloc
malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
ops.set_num_threads(4)
ops.rms_norm(torch.zeros(4096, 576), torch.ones(576), 1e-5)  # the threads are there, but have no scratch yet
call = paged_attention(512)
size = [line for line in open("/proc/self/status") if line.startswith("VmData")][0]
hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
resource.setrlimit(resource.RLIMIT_DATA, (int(size.split()[1]) * 1024, hard))
while malloc(200_000):
    pass
failures = 0
for _ in range(3):
    try:
        call()
    except MemoryError:
        failures += 1
resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
result = call().clone()
ops.set_num_threads(1)
print(failures, torch.equal(call(), result))
"""


@pytest.mark.skipif(ADDRESS_SANITIZER, reason="AddressSanitizer ends a process that has no memory for it")
def test_without_memory_for_scratch_a_call_fails_and_the_next_does_not() -> None:
    assert run_alone(NO_MEMORY) == (0, "3 True\n", "")
