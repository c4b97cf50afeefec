"""Gauges of a GPU: read once a second, absent on a CPU and where the driver does not tell. torch's questions are answered here."""

from __future__ import annotations

import logging

import pytest
import torch

from quire.engine.device_usage import LOOK_S, DeviceUsage, Usage
from quire.metrics import EngineMetrics
from quire.request import StepStats

GPU = torch.device("cuda", 0)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """A GPU that is 40 % busy, with 60 of 80 GiB in use; what asked about its memory."""
    devices: list[torch.device] = []

    def memory(device: torch.device) -> tuple[int, int]:
        devices.append(device)
        return 20 << 30, 80 << 30

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 40)
    return devices


def test_it_is_read_once_a_second(asked: list[torch.device]) -> None:
    now = 100.0
    usage = DeviceUsage(GPU, clock=lambda: now)
    assert usage.read() == usage.read() == Usage(0.4, 0.75)
    now += LOOK_S
    usage.read()
    assert asked == [GPU, GPU]


def test_a_cpu_is_never_asked(asked: list[torch.device]) -> None:
    assert DeviceUsage(torch.device("cpu")).read() == Usage()
    assert asked == []


def test_a_driver_that_does_not_tell_is_told_of_once(
    asked: list[torch.device], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    now = 0.0
    usage = DeviceUsage(GPU, clock=lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert usage.read() == Usage(None, 0.75)
            now += LOOK_S
    assert len(caplog.records) == 1


def test_the_metrics_exist_where_there_is_something_to_tell() -> None:
    def page(**told: float) -> str:
        metrics = EngineMetrics("m")
        fields = dict.fromkeys(set(StepStats.__struct_fields__) - {"grammars", "device_busy", "device_memory"}, 0)
        metrics.step(StepStats(**fields, **told))  # type: ignore[arg-type]
        return metrics.exposition("")[0].decode()

    assert "quire_gpu_" not in page().replace("quire_gpu_cache_usage", "")
    with_gpu = page(device_busy=0.4, device_memory=0.75)
    assert 'quire_gpu_utilization{model_name="m"} 0.4' in with_gpu
    assert 'quire_gpu_mem_util{model_name="m"} 0.75' in with_gpu
