"""Where a model runs, on how many threads, with how much memory: asked of flags and machine."""

from __future__ import annotations

import torch

from quire.config import EngineConfig
from quire.engine import host
from quire.engine.budget import Budget, GPUBudget, HostBudget
from quire.errors import ConfigError
from quire_kernels import ops


def device_of(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no CUDA device here; use --device cpu, or a torch built for CUDA")
    return torch.device("cuda" if config.device != "cpu" and torch.cuda.is_available() else "cpu")


def use_threads(config: EngineConfig) -> int:
    """Set the threads of all that computes on the CPU; how many they are."""
    threads = config.cpu_threads or host.cpu_threads()
    torch.set_num_threads(threads)
    ops.set_num_threads(threads)
    return threads


def budget_of(device: torch.device, config: EngineConfig) -> Budget:
    if device.type == "cpu":
        return HostBudget(host.memory())
    free, total = torch.cuda.mem_get_info(device)
    return GPUBudget(free, total, config.gpu_memory_utilization)


def check_length(config: EngineConfig, model_len: int) -> None:
    if config.max_model_len is not None and config.max_model_len > model_len:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} is more than the {model_len} tokens {config.model} was made for; lower it"
        )


def name_of(dtype: torch.dtype) -> str:
    """As flags call it."""
    return str(dtype).removeprefix("torch.")
