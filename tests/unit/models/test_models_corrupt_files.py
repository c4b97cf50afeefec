"""Damaged weights end with one sentence naming the file, never with a crash, a hang or a wrong model."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from quire.errors import ModelError
from quire.models.gguf_file import GGUFFile
from quire.models.loader import inspect
from quire.models.precision import Precision
from quire.models.source import ModelFiles, resolve
from quire_testing.tiny_gguf import save_gguf
from quire_testing.tiny_llama import make_model, save_folder

CPU = torch.device("cpu")


def load_all(path: Path) -> None:
    """What a start does with a model's files."""
    inspect(resolve(str(path))).on(CPU).load(Precision.of(torch.float32), 16)


def refused(path: Path) -> str:
    """The sentence a damaged model ends with."""
    with pytest.raises(ModelError) as caught:
        load_all(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pristine")
    model = make_model(num_hidden_layers=1)
    save_folder(model, folder / "whole")
    save_folder(model, folder / "sharded", sharded=True)
    save_gguf(model, folder / "whole", folder / "model.gguf")
    for path in (folder / "whole", folder / "sharded", folder / "model.gguf"):
        load_all(path)
    return folder


@pytest.fixture
def whole(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine / "whole", tmp_path / "whole"))


@pytest.fixture
def sharded(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine / "sharded", tmp_path / "sharded"))


@pytest.fixture
def gguf(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(pristine / "model.gguf", tmp_path / "model.gguf"))


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.001, 0.003, 0.01, 0.1, 0.5, 0.9, 0.999, 0.99999])
def test_truncated_gguf(gguf: Path, share: float) -> None:
    raw = gguf.read_bytes()
    gguf.write_bytes(raw[: min(int(len(raw) * share), len(raw) - 1)])
    message = refused(gguf)
    assert str(gguf) in message
    assert "download" in message or "GGUF" in message


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.0, 0.9999))
def test_a_gguf_cut_anywhere_is_refused(pristine: Path, tmp_path: Path, cut: float) -> None:
    raw = (pristine / "model.gguf").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(raw[: int(len(raw) * cut)])
    refused(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_gguf_header_is_refused_or_read_but_never_crashes(
    pristine: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray((pristine / "model.gguf").read_bytes())
    header = GGUFFile(pristine / "model.gguf").tensors["token_embd.weight"].start
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(header, len(raw)) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(raw)
    try:
        inspect(ModelFiles("gguf", path, "damaged"))
    except ModelError as exc:
        assert str(path) in str(exc)


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, b"GGML", "does not begin with GGUF"),
        (4, struct.pack("<I", 1), "GGUF version 1; versions 2 and 3"),
        (4, struct.pack(">I", 3), "GGUF version 50331648"),
        (8, struct.pack("<Q", 1 << 50), "claims 1125899906842624 tensors"),
        (24, struct.pack("<Q", 1 << 60), "goes on past the end of the file"),
    ],
)
def test_damaged_gguf_header(gguf: Path, at: int, new: bytes, message: str) -> None:
    raw = bytearray(gguf.read_bytes())
    raw[at : at + len(new)] = new
    gguf.write_bytes(raw)
    assert message in refused(gguf)


def test_a_count_of_layers_that_no_model_has(gguf: Path) -> None:
    """Found by the test of damaged headers: a hang, and no error."""
    raw = gguf.read_bytes()
    at = raw.index(b"llama.block_count") + len(b"llama.block_count") + 4
    gguf.write_bytes(raw[:at] + struct.pack("<I", 1 << 31) + raw[at + 4 :])
    assert "llama.block_count must be at most 4096, got 2147483648" in refused(gguf)


def test_gguf_of_another_architecture_or_type(gguf: Path) -> None:
    raw = gguf.read_bytes()
    other = raw.replace(
        b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00llama",
        b"general.architecture\x08\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00mamba",
    )
    assert other != raw
    gguf.write_bytes(other)
    assert "architecture 'mamba' is not supported; supported: gemma2, llama, " in refused(gguf)
    name = b"output_norm.weight"
    at = raw.index(name) + len(name) + 4 + 8
    gguf.write_bytes(raw[:at] + struct.pack("<I", 22) + raw[at + 4 :])
    assert "tensor output_norm.weight has type 22, which is not supported" in refused(gguf)


def test_gguf_with_a_missing_and_with_an_unknown_tensor(gguf: Path) -> None:
    raw = gguf.read_bytes()
    gguf.write_bytes(raw.replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
    assert "lacks tensor blk.0.ffn_up.weight" in refused(gguf)


def test_numbers_that_are_not_finite(gguf: Path) -> None:
    raw = bytearray(gguf.read_bytes())
    tensor = GGUFFile(gguf).tensors["blk.0.ffn_down.weight"]
    raw[tensor.start : tensor.start + 4] = struct.pack("<f", float("nan"))
    gguf.write_bytes(raw)
    assert "tensor blk.0.ffn_down.weight holds numbers that are not finite" in refused(gguf)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.005, 0.02, 0.5, 0.99, 0.99999])
def test_truncated_safetensors(whole: Path, share: float) -> None:
    file = whole / "model.safetensors"
    raw = file.read_bytes()
    file.write_bytes(raw[: min(int(len(raw) * share), len(raw) - 1)])
    message = refused(whole)
    assert str(file) in message
    assert "truncated or damaged" in message


def test_a_damaged_safetensors_header(whole: Path) -> None:
    file = whole / "model.safetensors"
    raw = bytearray(file.read_bytes())
    raw[8:12] = b"\xff\xff\xff\xff"
    file.write_bytes(raw)
    assert "truncated or damaged" in refused(whole)


def test_a_missing_shard_and_a_truncated_one(sharded: Path) -> None:
    shards = sorted(sharded.glob("*.safetensors"))
    raw = shards[1].read_bytes()
    shards[1].write_bytes(raw[: len(raw) // 2])
    assert str(shards[1]) in refused(sharded)
    shards[1].unlink()
    assert f"lacks 1 of {len(shards)} weight files, as {shards[1].name}" in refused(sharded)


def test_an_index_that_lies(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    first, *_, last = sorted(set(content["weight_map"].values()))
    name = next(name for name, file in content["weight_map"].items() if file == first)
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], name: last}}))
    assert f"lacks tensor {name}" in refused(sharded)
    index.write_text(json.dumps({"weight_map": {**content["weight_map"], name: "../other.safetensors"}}))
    assert "outside its folder" in refused(sharded)
    for damaged in ("", "[]", '{"weight_map": 3}', "{"):
        index.write_text(damaged)
        assert str(index) in refused(sharded)


def test_missing_unexpected_and_misshapen_tensors(whole: Path) -> None:
    file = whole / "model.safetensors"
    tensors = load_file(file)
    up = "model.layers.0.mlp.up_proj.weight"

    def saved(**changes: torch.Tensor | None) -> str:
        changed = tensors | changes
        save_file({name: value for name, value in changed.items() if value is not None}, file, {"format": "pt"})
        return refused(whole)

    assert f"lacks tensor {up}" in saved(**{up: None})
    assert "holds tensor model.layers.0.extra.weight, which" in saved(**{"model.layers.0.extra.weight": torch.zeros(2)})
    assert "has shape [80, 47], the configuration says [80, 48]" in saved(**{up: torch.zeros(80, 47)})
    assert "holds numbers that are not finite" in saved(**{up: torch.full((80, 48), torch.inf)})
    assert "quantised safetensors are not supported" in saved(**{up: torch.zeros(80, 48, dtype=torch.int8)})


def test_tensors_that_carry_nothing_are_ignored(whole: Path) -> None:
    file = whole / "model.safetensors"
    tensors = load_file(file) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}
    save_file(tensors, file, {"format": "pt"})
    load_all(whole)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": -1}, "num_hidden_layers must be a positive integer, got -1"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers must be a positive integer, got 'many'"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers must be at most 4096, got 1099511627776"),
        ({"num_hidden_layers": 2}, "lacks tensor model.layers.1."),
        (
            {"architectures": ["MixtralForCausalLM"], "num_hidden_layers": 4096, "num_local_experts": 4096},
            "4096 layers of 4096 experts are more than the 131072 experts a model may have",
        ),
        ({"hidden_act": "gelu"}, "hidden_act must be one of silu, "),
        (
            {"architectures": ["MambaForCausalLM"]},
            "its model_type 'llama' means LlamaForCausalLM; config.json contradicts itself",
        ),
        ({"architectures": ["Unheard"]}, "architectures ['Unheard'] is not supported, and no decoder-only model of"),
        ({"architectures": None}, "architectures [] is not supported"),
        (
            {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}},
            "OwnForCausalLM brings its own code (modeling_own.OwnForCausalLM), which is not run; read it, then start with",
        ),
        ({"num_key_value_heads": 4}, "6 attention heads are no multiple of 4 key/value heads"),
        (
            {"rope_parameters": {"rope_type": "spiral", "factor": 2.0}},
            "rope type 'spiral' is not supported; supported: ",
        ),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be a token id"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config (awq) is not supported; use the unqu"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "(compressed-tensors) is not supported"),
        ({"quantization_config": ["awq"]}, "quantization_config (no quant_method) is not supported"),
        ({"vocab_size": 198}, "has shape [199, 48], the configuration says [198, 48]"),
    ],
)
def test_a_configuration_that_cannot_be_used(whole: Path, change: dict[str, object], message: str) -> None:
    config = whole / "config.json"
    content = {**json.loads(config.read_text()), **change}
    config.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    assert message in refused(whole)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"a": 1}'])
def test_a_damaged_configuration(whole: Path, content: str) -> None:
    (whole / "config.json").write_text(content)
    assert "config.json" in refused(whole)


def test_weights_of_another_kind_or_none(whole: Path) -> None:
    (whole / "model.safetensors").rename(whole / "pytorch_model.bin")
    assert "pytorch_model.bin is no safetensors file, convert it" in refused(whole)
    (whole / "pytorch_model.bin").unlink()
    assert "holds no model.safetensors" in refused(whole)
