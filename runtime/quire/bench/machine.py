"""Which machine, which software: what a figure means nothing without."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import quire
from quire.engine import host

FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
    *("amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)
"""Of all instruction sets, those that kernels choose by."""
PACKAGES = ("quire", "quire-kernels", "torch", "numpy", "tokenizers")


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """CPU model, its instruction sets, threads this process may use, memory in bytes, system."""
    name, flags = cpu(cpuinfo)
    return {
        "cpu": name or platform.processor() or platform.machine(),
        "flags": flags,
        "threads": host.cpu_threads(),
        "memory_bytes": host.memory().limit,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, list[str]]:
    """The CPU's name and which of FLAGS it has; empty where unknown."""
    try:
        lines = [line.partition(":") for line in cpuinfo.read_text().splitlines()]
    except OSError:
        return "", []
    values = {key.strip(): value.strip() for key, _, value in reversed(lines)}
    has = set((values.get("flags") or values.get("Features") or "").split())
    return values.get("model name", ""), [flag for flag in FLAGS if flag in has]


def versions() -> dict[str, str]:
    """Of Python and of the packages that are measured; `commit` where they run from a checkout."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["quire"] = quire.__version__
    if commit := _commit(Path(quire.__file__).parent):
        found["commit"] = commit
    return found


def _commit(folder: Path) -> str:
    """Short hash of the checkout that holds a folder, `+` behind it where files differ from it; empty where there is none."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False, timeout=10
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        if not git("ls-files", "__init__.py"):  # inside somebody else's checkout is not a checkout of ours
            return ""
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno", ".") else "")
    except (OSError, subprocess.TimeoutExpired):
        return ""


def environment() -> dict[str, str]:
    """Variables that change what is measured and are no fields of the configuration, as they are set."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name in ("QUIRE_KERNELS", "QUIRE_CPU_ISA", "LD_PRELOAD")
        or name.startswith(("OMP_", "KMP_", "MKL_", "ONEDNN_"))
    }
