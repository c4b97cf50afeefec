"""Gauges of a GPU: read once a second, absent on a CPU and where the driver does not tell. torch's questions are answered here.

Everything behind them is the real one: the engine as it is built, its reports as they are sent, the page as it is shown.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

from quire.engine import wire
from quire.engine.core import EngineCore
from quire.engine.device_usage import LOOK_S, DeviceUsage, Usage
from quire.engine.pooling.core import PoolingCore
from quire.metrics import EngineMetrics
from quire.request import AddRequest, PoolRequest, SamplingParams, StepOutputs
from quire_testing.cores import make_core
from quire_testing.tiny_bert import make_bert, save_bert
from quire_testing.tiny_llama import make_model, save_folder

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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """How to build each kind of engine."""
    decoder = save_folder(make_model(), tmp_path_factory.mktemp("decoder"))
    encoder = save_bert(make_bert(), tmp_path_factory.mktemp("encoder"))
    return {
        "generates": {"model": decoder},
        "pools": {"model": decoder, "pooling": "last"},
        "encodes": {"model": encoder, "num_blocks": None},
    }


def page_after_a_step(core: EngineCore) -> str:
    """What is shown of an engine's own report, which was sent to the server."""
    ids = [5, 6, 7]
    if isinstance(core, PoolingCore):
        core.pool(PoolRequest(request_id="r", prompt_token_ids=ids, arrival_s=0.0))
    else:
        core.add(AddRequest(request_id="r", prompt_token_ids=ids, params=SamplingParams(max_tokens=1), arrival_s=0.0))
    report = wire.from_engine.decode(wire.encoder.encode(core.step()))
    assert isinstance(report, StepOutputs) and report.stats.batch_size == 1
    metrics = EngineMetrics("m")
    metrics.step(report.stats)
    return metrics.exposition("")[0].decode()


@pytest.mark.parametrize("kind", ["generates", "pools", "encodes"])
def test_every_engine_tells_of_its_gpu_and_nothing_of_a_cpu(
    models: dict[str, Any], kind: str, asked: list[torch.device]
) -> None:
    core = make_core(**models[kind])
    usage = core.usage
    assert usage is not None, "of a CPU, which has nothing to say, but it is asked"
    assert not re.search(r"^quire_gpu_(utilization|mem_util)", page_after_a_step(core), re.MULTILINE)
    assert asked == []
    usage._device = GPU
    page = page_after_a_step(core)
    assert 'quire_gpu_utilization{model_name="m"} 0.4' in page
    assert 'quire_gpu_mem_util{model_name="m"} 0.75' in page
    assert asked == [GPU]


def test_where_the_package_is_missing_torch_itself_says_which(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (20 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "_HAS_PYNVML", False)
    with caplog.at_level(logging.WARNING):
        assert DeviceUsage(GPU).read() == Usage(None, 0.75)
    assert "nvidia-ml-py" in caplog.text
