"""The text goes through the layers as through the torch modules, and what matters is what a matrix reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire.models import calibration
from quire.models.calibration import Calibration
from quire.models.checkpoint import SafetensorsCheckpoint
from quire.models.executor import Batch, allocate_kv_pool
from quire.models.loader import NativeModel, inspect
from quire.models.norm import make_norm
from quire.models.precision import Precision
from quire.models.source import resolve
from quire_kernels import ops
from quire_testing.tiny_models import FAMILIES, VOCAB, make, save

CPU = torch.device("cpu")
TOKENS = 45
WITHOUT_EXPERTS = [name for name in FAMILIES if not name.startswith(("mixtral", "qwen3-moe"))]


def native(name: str, place: Path) -> NativeModel:
    found = inspect(resolve(str(save(make(name), place))))
    assert isinstance(found, NativeModel)
    return found


def watched(model: NativeModel, tokens: list[int]) -> Calibration:
    d = model.description
    return Calibration(d, SafetensorsCheckpoint(model.files.path, d, model.names), tokens)


@pytest.mark.parametrize("name", WITHOUT_EXPERTS)
def test_hidden_states_are_those_of_the_modules(name: str, tmp_path: Path) -> None:
    model = native(name, tmp_path)
    d, tokens = model.description, [3 + 7 * i % (VOCAB - 3) for i in range(TOKENS)]
    found = watched(model, tokens)
    for layer in range(d.num_layers):
        seen = found.layer(layer)
        assert {name: len(squares) for name, squares in seen.items()} == {
            "qkv": d.hidden_size,
            "o": d.q_size,
            "gate_up": d.hidden_size,
            "down": d.intermediate_size,
        }
    at = torch.arange(TOKENS)
    batch = Batch(
        token_ids=torch.tensor(tokens),
        positions=at,
        slot_mapping=at,
        block_tables=torch.arange(3, dtype=torch.int32)[None],
        query_start=torch.tensor([0, TOKENS], dtype=torch.int32),
        context_lens=torch.tensor([TOKENS], dtype=torch.int32),
        logit_rows=at,
    )
    modules = model.modules(CPU).load(Precision.of(torch.float32), TOKENS)
    expected = modules.forward(batch, allocate_kv_pool(d, 3, 16, torch.float32, CPU))
    checkpoint = SafetensorsCheckpoint(model.files.path, d, model.names)
    ours = make_norm(d, checkpoint.read("norm", torch.float32))(found.hidden)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_what_matters_is_the_mean_square(tmp_path: Path) -> None:
    model = native("llama", tmp_path)
    found = watched(model, [5, 9, 9, 30])
    hidden = found.hidden.clone()
    checkpoint = SafetensorsCheckpoint(model.files.path, model.description, model.names)
    weight = checkpoint.read("layers.0.attn_norm", torch.float32)
    expected = ops.rms_norm(hidden, weight, model.description.norm_eps).square().mean(dim=0)
    torch.testing.assert_close(found.layer(0)["qkv"], expected.clamp(min=calibration.SMALLEST * float(expected.mean())))


def test_int4_makes_use_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What matters goes to the matrix that reads it; values and the MLP's last matrix get 8 bits."""
    model = native("llama", tmp_path)
    given: list[tuple[tuple[str, ...], torch.Tensor | None]] = []
    pack = ops.pack_weights

    def packed(parts: list[tuple[torch.Tensor, str]], importance: torch.Tensor | None = None) -> ops.PackedWeight:
        given.append((tuple(format for _, format in parts), importance))
        return pack(parts, importance)

    monkeypatch.setattr(ops, "pack_weights", packed)
    tokens = list(range(3, 3 + TOKENS))
    model.plan().load(Precision(torch.float32, torch.bfloat16, "int4"), TOKENS, lambda: tokens)
    formats = [("q8",), *[("q4", "q4", "q8"), ("q4",), ("q4",), ("q8",)] * model.description.num_layers]
    assert [each for each, _ in given][: len(formats)] == formats
    expected = watched(model, tokens)
    for layer in range(model.description.num_layers):
        squares = expected.layer(layer)
        for (_, importance), name in zip(given[1 + 4 * layer :], ("qkv", "o", "gate_up", "down"), strict=False):
            assert importance is not None
            torch.testing.assert_close(importance, squares[name])


def test_weights_do_not_depend_on_the_length_of_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = native("llama", tmp_path), list(range(3, 3 + TOKENS))
    seen: list[torch.Tensor] = []
    pack = ops.pack_weights

    def packed(parts: list[tuple[torch.Tensor, str]], importance: torch.Tensor | None = None) -> ops.PackedWeight:
        if importance is not None:
            seen.append(importance)
        return pack(parts, importance)

    monkeypatch.setattr(ops, "pack_weights", packed)
    for num_positions in (TOKENS, 8):
        model.plan().load(Precision(torch.float32, torch.bfloat16, "int4"), num_positions, lambda: tokens)
    half = len(seen) // 2
    assert half == 4 * model.description.num_layers
    assert all(torch.equal(one, other) for one, other in zip(seen[:half], seen[half:], strict=True))


def test_the_text_is_long_enough() -> None:
    assert len(calibration.text().split()) > 400
