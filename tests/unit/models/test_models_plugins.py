"""A plugin is a distribution with an entry point; its architecture is served like a native one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from quire.errors import ModelError
from quire.models.loader import inspect
from quire.models.source import resolve
from quire.request import SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.tiny_llama import greedy, make_model, save_folder

MODULE = '''
"""A Llama that calls its fields and tensors otherwise."""

from dataclasses import replace

from quire.models import hf_config, llama
from quire.models.metadata import Fields
from quire.models.registry import HFArchitecture


def describe(config):
    usual = config.values | {"num_hidden_layers": config.integer("depth")}
    return hf_config.describe(Fields(usual, config.path), "widget")


names = replace(
    llama.HF_NAMES,
    top={key: name.replace("model.", "widget.") for key, name in llama.HF_NAMES.top.items()},
    layer={key: name.replace("model.", "widget.") for key, name in llama.HF_NAMES.layer.items()},
)
architecture = HFArchitecture(describe, names)
nonsense = "no architecture"
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution: a module and the metadata that pip would write."""
    site = tmp_path / "site"
    info = site / "quire_widget-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "quire_widget.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quire-widget\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[quire.models]\n"
        "WidgetForCausalLM = quire_widget:architecture\n"
        "OddForCausalLM = quire_widget:nonsense\n"
        "BrokenForCausalLM = quire_widget:absent\n"
        "LlamaForCausalLM = quire_widget:absent\n"
    )
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(make_model(), tmp_path_factory.mktemp("llama"))


def renamed(folder: Path, target: Path, architecture: str) -> Path:
    """The model as the plugin's architecture: other class, field and tensor names."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": [architecture], "model_type": "widget", "depth": config.pop("num_hidden_layers")}
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    changed = {name.replace("model.", "widget."): tensor for name, tensor in tensors.items()}
    save_file(changed, target / "model.safetensors", {"format": "pt"})
    return target


def test_a_plugin_serves_its_architecture(plugin: Path, llama_folder: Path, tmp_path: Path) -> None:
    folder = renamed(llama_folder, tmp_path / "widget", "WidgetForCausalLM")
    prompts = [[5, 6, 7], list(range(3, 60))]
    model = make_model()
    core = make_core(folder)
    answers = generate(core, prompts, SamplingParams(temperature=0.0, max_tokens=20))
    assert answers == [greedy(model, prompt, 20) for prompt in prompts]
    assert inspect(resolve(str(folder))).implementation == "native"


@pytest.mark.parametrize(
    ("architecture", "message"),
    [
        ("BrokenForCausalLM", "the plugin quire_widget:absent for BrokenForCausalLM cannot be loaded: "),
        ("OddForCausalLM", "the plugin quire_widget:nonsense for OddForCausalLM is a str, not an HFArchitecture"),
    ],
)
def test_a_plugin_that_is_none_is_named(
    plugin: Path, llama_folder: Path, tmp_path: Path, architecture: str, message: str
) -> None:
    folder = renamed(llama_folder, tmp_path / "widget", architecture)
    with pytest.raises(ModelError) as caught:
        inspect(resolve(str(folder)))
    assert message in str(caught.value)


def test_what_is_native_wins(plugin: Path, llama_folder: Path) -> None:
    assert inspect(resolve(str(llama_folder))).implementation == "native"
