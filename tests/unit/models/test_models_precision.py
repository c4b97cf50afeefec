"""Which numbers a model computes with: by its files, by what computes it, by `--dtype` and `--quantization`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.config import EngineConfig
from quire.engine.startup import build
from quire.errors import ConfigError
from quire.models import precision
from quire.models.loader import Builder, NativeModel, inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

CPU = torch.device("cpu")
FLOAT, BFLOAT, HALF = torch.float32, torch.bfloat16, torch.float16
FILES = {
    "float32": None,
    "bfloat16": None,
    "Q4_1": ["Q4_1"],
    "Q8_0+Q4_1": ["Q4_1", "Q8_0"],
    "Q4_1+F16": ["Q4_1", "F16"],
    "F16": ["F16"],
    "BF16": ["BF16"],
    "F32": [],
    "experts": None,
}


@pytest.fixture(scope="module")
def builders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Builder]:
    found = {}
    for name, types in FILES.items():
        folder = tmp_path_factory.mktemp(name)
        model = make("mixtral" if name == "experts" else "llama")
        model = model.bfloat16() if name == "bfloat16" else model
        path = save(model, folder / "folder")
        if types is not None:
            path = save_gguf(model, path, folder / "tiny.gguf", types=types)
        found[name] = inspect(resolve(str(path))).on(CPU)
    return found


@pytest.mark.parametrize(
    ("files", "flags", "expected"),
    [
        ("float32", {}, Precision(FLOAT, FLOAT)),
        ("bfloat16", {}, Precision(BFLOAT, BFLOAT)),
        ("bfloat16", {"dtype": "float32"}, Precision(FLOAT, FLOAT)),
        ("bfloat16", {"quantization": "none"}, Precision(BFLOAT, BFLOAT)),
        ("bfloat16", {"quantization": "int8"}, Precision(BFLOAT, BFLOAT, "int8")),
        ("float32", {"quantization": "int4"}, Precision(FLOAT, BFLOAT, "int4")),
        ("float32", {"quantization": "int4", "dtype": "float32"}, Precision(FLOAT, FLOAT, "int4")),
        ("float32", {"quantization": "int8", "dtype": "bfloat16"}, Precision(BFLOAT, BFLOAT, "int8")),
        ("Q4_1", {}, Precision(FLOAT, BFLOAT, "stored")),
        ("Q4_1+F16", {}, Precision(HALF, BFLOAT, "stored")),
        ("Q8_0+Q4_1", {}, Precision(FLOAT, BFLOAT, "stored")),
        ("Q4_1", {"dtype": "float32"}, Precision(FLOAT, FLOAT)),
        ("Q4_1", {"dtype": "bfloat16"}, Precision(BFLOAT, BFLOAT)),
        ("Q4_1", {"quantization": "none"}, Precision(FLOAT, FLOAT)),
        ("F16", {}, Precision(HALF, HALF, "stored")),
        ("BF16", {}, Precision(BFLOAT, BFLOAT, "stored")),
        ("F32", {}, Precision(FLOAT, FLOAT, "stored")),
        ("F16", {"quantization": "int8"}, Precision(HALF, HALF, "int8")),
        ("experts", {}, Precision(FLOAT, FLOAT)),
        ("experts", {"quantization": "int8"}, Precision(FLOAT, BFLOAT, "int8")),
    ],
    ids=str,
)
def test_what_is_chosen(
    builders: dict[str, Builder],
    files: str,
    flags: dict[str, str],
    expected: Precision,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(precision, "native_bfloat16", lambda: False)
    assert builders[files].precision(**flags) == expected


def test_expanded_to_bfloat16_where_the_cpu_multiplies_it(
    builders: dict[str, Builder], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "native_bfloat16", lambda: True)
    assert builders["Q4_1"].precision(quantization="none") == Precision.of(BFLOAT)


def test_a_quantised_file_is_not_quantised_again(builders: dict[str, Builder]) -> None:
    with pytest.raises(
        ConfigError,
        match=r"--quantization int8: the file is quantised already \(Q8_0\+Q4_1\); leave it out, or take the model's unquantised",
    ):
        builders["Q8_0+Q4_1"].precision(quantization="int8")


def test_torch_modules_compute_plain_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.models.cpu_decoder.unsupported", lambda description: "it is too odd")
    builder = inspect(resolve(str(save(make("llama"), tmp_path)))).on(CPU)
    monkeypatch.setattr(precision, "native_bfloat16", lambda: True)
    assert builder.precision() == Precision.of(BFLOAT)
    assert builder.precision("float32", "none") == Precision.of(FLOAT)
    with pytest.raises(ConfigError, match="--quantization int8 needs the CPU plan, but it is too odd; leave it out"):
        builder.precision(quantization="int8")


def test_another_device_computes_plain_numbers(tmp_path: Path) -> None:
    model = make("llama")
    file = save_gguf(model, save(model, tmp_path / "folder"), tmp_path / "tiny.gguf", types=["Q4_1"])
    builder = inspect(resolve(str(file))).on(torch.device("meta"))
    assert builder.precision() == Precision.of(BFLOAT)
    with pytest.raises(ConfigError, match="--quantization int4 needs the CPU plan, but it runs on a CPU, not on meta"):
        builder.precision(quantization="int4")


@pytest.mark.parametrize(
    ("types", "flags", "told"),
    [
        (["Q4_1"], {}, ("Q4_1", "float32", "bfloat16")),
        (["Q4_1"], {"kv_cache_dtype": "float32"}, ("Q4_1", "float32", "float32")),
        (["Q4_1"], {"dtype": "float32"}, ("none", "float32", "float32")),
        (["F16"], {}, ("none", "float16", "float16")),
        (["BF16"], {}, ("none", "bfloat16", "bfloat16")),
        ([], {}, ("none", "float32", "float32")),
        (None, {}, ("none", "float32", "float32")),
        (None, {"quantization": "int8"}, ("int8", "float32", "bfloat16")),
        (None, {"quantization": "int4"}, ("int4", "float32", "bfloat16")),
    ],
    ids=str,
)
def test_the_engine_says_what_it_computes_with(
    types: list[str] | None, flags: dict[str, str], told: tuple[str, str, str], tmp_path: Path
) -> None:
    model = make("llama")
    path = save(model, tmp_path / "folder")
    if types is not None:
        path = save_gguf(model, path, tmp_path / "tiny.gguf", types=types)
    _, ready = build(EngineConfig(model=str(path), num_blocks=32, cpu_threads=1, **flags))  # type: ignore[arg-type]
    assert (ready.info["quantization"], ready.info["dtype"], ready.info["kv_cache_dtype"]) == told


def test_weights_that_have_no_quants_are_named(tmp_path: Path) -> None:
    model = make("llama")
    model.model.layers[1].mlp.down_proj.weight.data[3, 5] = 40_000.0
    found = inspect(resolve(str(save(model, tmp_path))))
    assert isinstance(found, NativeModel)
    chosen = found.on(CPU).precision(quantization="int8")
    with pytest.raises(Exception, match=r"layers.1.down cannot be quantised: weight\[3\] .* leave out --quantization"):
        found.on(CPU).load(chosen, 16)
