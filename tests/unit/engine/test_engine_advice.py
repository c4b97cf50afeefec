"""What a start is told that does not fit: flags of its own files and executor, with which the same model does."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.config import EngineConfig
from quire.engine import host, startup
from quire.engine.advice import same_model
from quire.engine.budget import HostBudget
from quire.engine.host import HostMemory
from quire.engine.memory import plan
from quire.engine.need import Need
from quire.errors import ModelError
from quire.models import calibration, precision
from quire.models.cpu_decoder import PlanBuilder
from quire.models.loader import Inspected, inspect
from quire.models.source import resolve
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

SIZES = {"hidden_size": 256, "intermediate_size": 1024, "max_position_embeddings": 1024}
SMALL_STEP = {"device": "cpu", "cpu_threads": 1, "max_num_batched_tokens": 64, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    found = {"float32": save(make("llama", **SIZES), place / "float32")}
    found["bfloat16"] = save(make("llama", **SIZES).bfloat16(), place / "bfloat16")
    found["Q8_0"] = save_gguf(make("llama", **SIZES), found["float32"], place / "q8.gguf", types=["Q8_0"])
    return found


@pytest.fixture(autouse=True)
def without_native_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "native_bfloat16", lambda: False)


@pytest.fixture(autouse=True)
def a_text_as_small_as_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MOST_TOKENS", 8)


def need_of(model: Inspected, config: EngineConfig, device: str = "cpu") -> tuple[Any, Need]:
    builder = model.on(torch.device(device))
    chosen = builder.precision(config.dtype, config.quantization)
    kv_dtype = chosen.kv_cache(config.kv_cache_dtype)
    return builder, Need(model.description, config, builder.footprint(chosen), kv_dtype.itemsize)


@pytest.mark.parametrize(
    ("name", "flags", "device", "advised"),
    [
        ("float32", {}, "cpu", ["--dtype bfloat16", "--quantization int8", "--quantization int4"]),
        ("bfloat16", {}, "cpu", ["--quantization int8", "--quantization int4"]),
        ("bfloat16", {"dtype": "float32"}, "cpu", ["--dtype auto", "--dtype bfloat16", "--quantization int8", "--quantization int4"]),
        ("bfloat16", {"quantization": "int8"}, "cpu", ["--quantization int4"]),
        ("Q8_0", {}, "cpu", []),
        ("Q8_0", {"dtype": "float32"}, "cpu", ["--dtype auto", "--dtype bfloat16"]),
        ("Q8_0", {"quantization": "none"}, "cpu", ["--quantization auto", "--dtype bfloat16"]),
        ("float32", {"dtype": "float32"}, "meta", ["--dtype auto", "--dtype bfloat16"]),
        ("bfloat16", {}, "meta", []),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_a_model_smaller(
    files: dict[str, Path], name: str, flags: dict[str, Any], device: str, advised: list[str]
) -> None:
    builder, need = need_of(inspect(resolve(str(files[name]))), EngineConfig(model="m", **flags), device)
    others = list(same_model(builder, need))
    assert [one.flag for one in others] == advised
    assert all(one.need.footprint.weights < need.footprint.weights for one in others)


@pytest.mark.parametrize(("name", "flag"), [("float32", "bfloat16"), ("bfloat16", "int8"), ("bfloat16", "int4")])
def test_a_start_that_does_not_fit_names_the_flag_with_which_it_does(
    files: dict[str, Path], name: str, flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=str(files[name]), **SMALL_STEP)
    builder, need = need_of(inspect(resolve(config.model)), config)
    (other,) = [one for one in same_model(builder, need) if one.flag.endswith(flag)]
    # all of the smaller one, and its tokens, but nothing to spare
    enough = other.need.footprint.weights + other.need.activation_bytes + other.need.pool_bytes(33)
    memory = HostMemory(available=int(enough / 0.9) + 1, limited=True, limit=int(enough / 0.9) + 1)
    monkeypatch.setattr(host, "memory", lambda: memory)
    with pytest.raises(ModelError, match=f" {flag} fits, or raise the limit to ") as caught:
        startup.build(config)
    assert str(caught.value).count(" fits") == 1
    said = {"dtype" if flag == "bfloat16" else "quantization": flag}
    _, ready = startup.build(config.model_copy(update=said))
    assert ready.max_model_len >= 512


@pytest.mark.parametrize(
    ("limited", "asked", "remedy"),
    [
        (True, {}, r"raise the limit to [\d.,]+ [KM]iB"),
        (False, {}, "--max-model-len 1024"),
        (False, {"num_blocks": 40}, "--num-blocks 64"),
        (False, {"kv_cache_memory": "300k"}, "--kv-cache-memory 2Mi"),
    ],
    ids=str,
)
def test_a_length_that_shrinks_is_announced_with_what_gives_it_back(
    files: dict[str, Path],
    limited: bool,
    asked: dict[str, Any],
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = EngineConfig(model=str(files["float32"]), dtype="bfloat16", **SMALL_STEP, **asked)
    _, need = need_of(inspect(resolve(config.model)), config)
    base = need.footprint.weights + need.activation_bytes
    available = int((base + need.pool_bytes(35)) / 0.9) if limited else 2 * base
    memory = HostMemory(available=available, limited=limited, limit=available)
    if not limited and not asked:
        monkeypatch.setattr("quire.engine.budget.FREE_SHARE", need.pool_bytes(40) / available)
    monkeypatch.setattr(host, "memory", lambda: memory)
    with caplog.at_level(logging.WARNING):
        _, ready = startup.build(config)
    assert ready.max_model_len < 1024
    (said,) = [message for one in caplog.records if "the model's length is" in (message := one.getMessage())]
    start, _, words = said.partition("; for all of it: ")
    assert (
        start
        == f"the model's length is {ready.max_model_len} tokens here, not the 1024 it was made for: the KV pool holds no more"
    )
    assert re.fullmatch(remedy, words), words


def test_the_plan_is_said_before_anything_is_allocated(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever's start ends for want of memory has read why."""

    class TakenError(Exception):
        """Weights or a pool were about to be."""

    def taken(*_: object, **__: object) -> None:
        raise TakenError

    monkeypatch.setattr(PlanBuilder, "load", taken)
    monkeypatch.setattr(startup, "allocate_kv_pool", taken)
    config = EngineConfig(model=str(files["float32"]), **SMALL_STEP)
    with caplog.at_level(logging.INFO), pytest.raises(TakenError):
        startup.build(config)
    assert [one for one in caplog.records if one.getMessage().startswith("memory plan: weights ")]


def test_the_least_that_is_advised_is_planned(files: dict[str, Path]) -> None:
    """Raising the limit by what is said gives a pool that is of use, also where reading takes the most."""
    config = EngineConfig(model="m", **SMALL_STEP)
    _, need = need_of(inspect(resolve(str(files["float32"]))), config)
    for share in (0.3, 0.8, 0.95):
        memory = HostMemory(available=int(need.footprint.weights * share), limited=True, limit=1 << 30)
        with pytest.raises(ModelError) as caught:
            plan(need, HostBudget(memory))
        missing: int = caught.value.missing  # type: ignore[attr-defined]
        enough = HostMemory(available=memory.available + int(missing / 0.9) + 2, limited=True, limit=1 << 30)
        assert plan(need, HostBudget(enough)).max_model_len >= 512
