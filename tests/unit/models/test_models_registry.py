"""Plugins add architectures through entry points; what is native wins, and a broken plugin says so."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType

import pytest
import torch

from quire.errors import ModelError
from quire.models import llama, registry
from quire.models.loader import inspect, load
from quire.models.metadata import Fields
from quire.models.source import resolve
from quire_testing.fidelity import CPU
from quire_testing.tiny_models import make, save


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that offers two architectures, and one entry point that cannot be loaded."""
    module = ModuleType("quire_test_plugin")
    module.own = registry.HFArchitecture(llama.from_config, llama.HF_NAMES)  # type: ignore[attr-defined]
    module.file = registry.GGUFArchitecture(llama.from_gguf, llama.GGUF_NAMES)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points = EntryPoints(
        [
            EntryPoint("OwnForCausalLM", "quire_test_plugin:own", registry.PLUGINS),
            EntryPoint("LlamaForCausalLM", "quire_test_plugin:nothing", registry.PLUGINS),
            EntryPoint("own", "quire_test_plugin:file", registry.PLUGINS),
            EntryPoint("BrokenForCausalLM", "quire_test_plugin:missing", registry.PLUGINS),
        ]
    )
    monkeypatch.setattr(registry, "entry_points", lambda group, name: points.select(group=group, name=name))
    return module


def config(name: str) -> Fields:
    return Fields({"architectures": [name]}, Path("config.json"))


def test_a_plugin_is_found_by_name_and_loads_a_model(plugins: ModuleType, tmp_path: Path) -> None:
    assert registry.find_hf(config("OwnForCausalLM")) is plugins.own
    assert registry.find_gguf(Path("a.gguf"), "own") is plugins.file
    folder = save(make("llama"), tmp_path)
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace("LlamaForCausalLM", "OwnForCausalLM"))
    assert load(inspect(resolve(str(folder))), torch.float32, CPU, 16).dtype == torch.float32


def test_native_wins_and_kinds_are_not_mixed_up(plugins: ModuleType) -> None:
    assert registry.find_hf(config("LlamaForCausalLM")) is registry.HF["LlamaForCausalLM"]
    assert registry.find_hf(config("own")) is None
    with pytest.raises(ModelError, match="architecture 'OwnForCausalLM' is not supported; supported: gemma2"):
        registry.find_gguf(Path("a.gguf"), "OwnForCausalLM")


def test_a_plugin_that_cannot_be_loaded_is_named(plugins: ModuleType) -> None:
    with pytest.raises(ModelError, match="the plugin quire_test_plugin:missing for BrokenForCausalLM cannot be loaded"):
        registry.find_hf(config("BrokenForCausalLM"))


def test_the_page_names_every_architecture() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    assert [name for name in (*registry.HF, *registry.GGUF) if f"`{name}`" not in page] == []
