"""CPUs and memory of this process, by affinity and control groups of both versions."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from quire.engine import host

GIB = 1 << 30


def machine(root: Path, files: dict[str, str], *, total: int = 64, available: int = 48) -> Path:
    """A file system with /proc and /sys/fs/cgroup as the kernel writes them; sizes in GiB."""
    meminfo = f"MemTotal:       {total << 20} kB\nMemFree: 1 kB\nMemAvailable:   {available << 20} kB\n"
    for name, content in {"proc/meminfo": meminfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


@pytest.fixture(autouse=True)
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))


def test_no_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, {})
    assert host.cpu_threads(root) == 16
    assert host.memory(root) == host.HostMemory(48 * GIB, False, 64 * GIB)


def test_version_2_in_a_container(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "250000 100000\n",
            "sys/fs/cgroup/memory.max": str(4 * GIB),
            "sys/fs/cgroup/memory.current": str(3 * GIB),
            "sys/fs/cgroup/memory.stat": f"anon 5\ninactive_file {GIB}\n",
        },
    )
    assert host.cpu_threads(root) == 3
    assert host.memory(root) == host.HostMemory(2 * GIB, True, 4 * GIB)


@pytest.mark.parametrize(("mapped", "free"), [(0, 3), (1, 2), (2, 1), (3, 1)])
def test_page_cache_that_nobody_maps_makes_room(mapped: int, free: int, tmp_path: Path) -> None:
    """2 GiB of weights that were mapped are charged to the pod when its engine starts again; libraries that run stay."""
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": str(4 * GIB),
            "sys/fs/cgroup/memory.current": str(3 * GIB),
            "sys/fs/cgroup/memory.stat": f"inactive_file 0\nactive_file {2 * GIB}\nfile_mapped {mapped * GIB}\n",
        },
    )
    assert host.memory(root) == host.HostMemory(free * GIB, True, 4 * GIB)


def test_page_cache_by_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(4 * GIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/memory/a/memory.stat": f"active_file {2 * GIB}\nmapped_file {GIB}\n",
        },
    )
    assert host.memory(root) == host.HostMemory(2 * GIB, True, 4 * GIB)


def test_version_2_takes_the_tightest_parent(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/pod/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/memory.max": str(2 * GIB),
            "sys/fs/cgroup/pod/memory.current": "0",
            "sys/fs/cgroup/pod/container/memory.max": "max",
            "sys/fs/cgroup/pod/container/memory.current": "0",
        },
    )
    assert host.cpu_threads(root) == 1
    assert host.memory(root) == host.HostMemory(2 * GIB, True, 2 * GIB)


def test_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/a\n3:cpu,cpuacct:/a\n0::/x\n",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "400000",
            "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/a/memory.limit_in_bytes": str(8 * GIB),
            "sys/fs/cgroup/memory/a/memory.usage_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/a/memory.stat": "total_inactive_file 0\n",
        },
    )
    assert host.cpu_threads(root) == 4
    assert host.memory(root) == host.HostMemory(7 * GIB, True, 8 * GIB)


def test_version_1_whose_path_is_the_hosts(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/kubepods/pod1/c1\n3:cpu:/kubepods/pod1/c1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "0",
        },
    )
    assert host.cpu_threads(root) == 1
    assert host.memory(root).limit == GIB


def test_no_limit_and_odd_files(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/\n3:cpu:/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
        },
    )
    assert host.cpu_threads(root) == 16
    assert not host.memory(root).limited
    (root / "sys/fs/cgroup/cpu/cpu.cfs_quota_us").write_text("nonsense")
    assert host.cpu_threads(root) == 16


def test_the_affinity_mask_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3})
    assert host.cpu_threads(machine(tmp_path, {})) == 1


def test_here() -> None:
    assert host.cpu_threads() >= 1
    assert host.memory().available > 0


def test_freed_memory_goes_back_to_the_system() -> None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        pytest.skip("not glibc")
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    blocks = [libc.malloc(100_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    before = _anonymous_bytes()
    host.trim()
    freed = before - _anonymous_bytes()
    libc.free(blocks[-1])
    assert freed > 50_000_000


def _anonymous_bytes() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024
