"""Reading a model's files takes no more memory than the plan says, and gives the same numbers however they are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from quire.models import calibration, checkpoint
from quire.models.description import DecoderDescription
from quire.models.loader import NativeModel, inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire_kernels import ops
from quire_kernels.ops import PackedWeight
from quire_testing.peak_memory import PeakMemory
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_models import make, save

CPU = torch.device("cpu")
POSITIONS = 16
SMALL_SLICE = 1024
"""Instead of a million: the matrices of tiny models are cut too."""
FOLDERS = ["llama", "phi3", "glm", "qwen3-biases", "olmo2-biases", "mixtral"]
"""Matrices of their own; stacked in the file; stacked and turned; biases, tied and untied heads; experts."""
FILES = [[], ["F16"], ["Q8_0"], ["Q4_1", "Q5_0", "BF16"]]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SLICE", SMALL_SLICE)


@pytest.fixture(autouse=True)
def what_is_mapped_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = checkpoint.SafetensorsCheckpoint._values

    def unseen(*given: Any) -> Tensor:
        with _disable_current_modes():
            return mapped(*given)

    monkeypatch.setattr(checkpoint.SafetensorsCheckpoint, "_values", unseen)


def native(path: Path) -> NativeModel:
    model = inspect(resolve(str(path)))
    assert isinstance(model, NativeModel)
    return model


def vector_bytes(description: DecoderDescription) -> int:
    """Norms and biases, which are vectors in float32."""
    return 4 * sum(shape[0] for shape in description.parameters().values() if len(shape) == 1)


class Packing(PeakMemory):
    """`highest` is the most that was held at a time of tensors and of weights that are packed."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = self.highest = 0

    def note(self, weight: PackedWeight) -> PackedWeight:
        """One more weight: before it the tensors were at their most, with it they are as they are."""
        before, self.packed = self.packed, self.packed + weight.nbytes
        alive = sum(num_bytes for held, num_bytes in self._alive.values() if not held.expired())
        self.highest = max(self.highest, before + self.most, self.packed + alive)
        self.most = 0
        return weight


def check_reading(model: NativeModel, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is loaded within what its footprint says, and the footprint is no idle guess."""
    monkeypatch.setattr(calibration, "MOST_TOKENS", POSITIONS)
    found = model.plan().footprint(precision)
    pack_weights, pack_gguf = ops.pack_weights, ops.pack_gguf
    with monkeypatch.context() as patch, Packing() as seen:
        patch.setattr(ops, "pack_weights", lambda *given: seen.note(pack_weights(*given)))
        patch.setattr(ops, "pack_gguf", lambda *given: seen.note(pack_gguf(*given)))
        model.plan().load(precision, POSITIONS, lambda: range(POSITIONS))
    tables = model.description.table_elements_per_position() * POSITIONS * 4
    assert seen.highest <= found.weights + found.loading + 4 * tables
    if precision.quantization != "stored":  # bytes of the file are no tensors that an operation made
        assert seen.highest >= found.weights - vector_bytes(model.description) + 0.5 * found.loading


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_what_is_quantised_is_read_within_its_footprint(
    quantization: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precision = Precision(torch.float32, torch.bfloat16, quantization)
    check_reading(native(save(make("llama"), tmp_path)), precision, monkeypatch)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_read_within_its_footprint(
    name: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_reading(native(save(make(name), tmp_path)), Precision.of(dtype), monkeypatch)


@pytest.mark.parametrize("types", FILES, ids=str)
def test_a_gguf_file_is_read_within_its_footprint(
    types: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make("llama")
    model = native(save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=types))
    for precision in (*map(Precision.of, DTYPES), model.plan().precision()):
        check_reading(model, precision, monkeypatch)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_torch_modules_are_filled_within_their_footprint(name: str, tmp_path: Path) -> None:
    model = native(save(make(name), tmp_path))
    for dtype in DTYPES[:2]:
        found = model.modules(CPU).footprint(Precision.of(dtype))
        with PeakMemory() as peak:
            model.modules(CPU).load(Precision.of(dtype), POSITIONS)
        assert found.weights / 2 < peak.most <= found.weights + found.loading
        assert found.loading >= model.description.hidden_size * model.description.vocab_size * dtype.itemsize


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_numbers_do_not_depend_on_where_a_tensor_is_cut(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make("llama")
    file = save_gguf(source, save(source, tmp_path / "folder"), tmp_path / "tiny.gguf", types=[kind])
    opened = native(file)
    assert opened.gguf is not None
    tensor = opened.gguf.tensors["token_embd.weight"]
    raw = torch.frombuffer(bytearray(opened.gguf.data(tensor)), dtype=torch.uint8)
    for dtype in DTYPES:
        at_once = ops.dequantize_gguf(raw, tensor.ggml_type, tensor.num_elements, dtype).view(tensor.shape)
        assert tensor.num_elements > 10 * SMALL_SLICE
        assert tensor.num_elements % SMALL_SLICE, "the last slice is a shorter one"
        cut: Tensor = opened._open().read("embed", dtype)
        assert torch.equal(cut, at_once)


def test_nothing_is_kept_of_what_nobody_asks_for_again(tmp_path: Path) -> None:
    """Stacked parameters share what was read; after the last of them it is gone."""
    files = native(save(make("phi3"), tmp_path))._open()
    for parameter in ("layers.0.q", "layers.0.k"):
        files.read(parameter, torch.float32)
        assert files._last is not None  # type: ignore[attr-defined]
    files.read("layers.0.v", torch.float32)
    assert files._last is None  # type: ignore[attr-defined]
    files.read("embed", torch.float32)
    assert files._last is None  # type: ignore[attr-defined]
