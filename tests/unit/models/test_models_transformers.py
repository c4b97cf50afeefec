"""Models that are not native run through transformers with paged attention, exactly, or are refused with a sentence."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from quire.config import EngineConfig
from quire.engine import startup
from quire.errors import ModelError
from quire.models.loader import inspect
from quire.models.precision import Precision
from quire.models.source import resolve
from quire.request import SamplingParams
from quire_testing.cores import generate, make_core
from quire_testing.fidelity import check_bfloat16, check_exact, crowded, our_logits, prompts_for, step_bytes
from quire_testing.tiny_llama import greedy, make_model, save_folder
from quire_testing.tiny_models import SIZES, VOCAB, Family, build, reference_logits, save

CPU = torch.device("cpu")
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
EXPERTS = {"n_routed_experts": 6, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32}
NEOX = Family("GPTNeoXConfig", {"rotary_pct": 0.5})
STABLELM = Family("StableLmConfig")
FAMILIES = {
    "gpt2": Family("GPT2Config", {"initializer_range": 0.3}),
    "opt": Family("OPTConfig", {"ffn_dim": 96, "init_std": 0.3, "word_embed_proj_dim": 64}),
    "gpt-neox": NEOX,
    "stablelm": STABLELM,
    "granite": Family(
        "GraniteConfig", {"logits_scaling": 1.3, "residual_multiplier": 0.7, "embedding_multiplier": 3.0}
    ),
    "cohere": Family("CohereConfig", {"logit_scale": 0.5, "use_qk_norm": True}),
    "cohere2": Family("Cohere2Config", {"sliding_window": 14, "logit_scale": 0.5}),  # windows on three layers of four
    "vaultgemma": Family("VaultGemmaConfig", {"sliding_window": 14, "head_dim": 16, "attn_logit_softcapping": 2.0}),
    "deepseek-v3": Family(
        "DeepseekV3Config", {**LATENT, **EXPERTS, "first_k_dense_replace": 1, "num_key_value_heads": 4}
    ),
}


def make(family: Family) -> Any:
    """A random model whose answers have full length."""
    model = build(family)
    model.generation_config.eos_token_id = None
    return model


def refused(folder: Path, **options: Any) -> str:
    """The sentence a model ends with."""
    with pytest.raises(ModelError) as caught:
        inspect(resolve(str(folder)), **options).on(CPU).load(Precision.of(torch.float32), 64)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' own model, and its folder."""
    model = make(FAMILIES[request.param])
    return model, save(model, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def neox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make(NEOX), tmp_path_factory.mktemp("neox"))


@pytest.fixture
def copied(neox: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(neox, tmp_path / "copied"))


def test_logits_at_every_position(family: tuple[Any, Path]) -> None:
    model, folder = family
    sequences = prompts_for(3)
    expected = [reference_logits(model, sequence) for sequence in sequences]
    assert expected[0].std() > 0.3
    for chunk in (1000, 13):
        for ours, theirs in zip(our_logits(folder, sequences, chunk), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_logits_and_answers_under_chunks_hits_preemption_and_swaps(family: tuple[Any, Path]) -> None:
    model, folder = family
    check_exact(crowded(folder), model)


def test_bfloat16_is_as_close_as_that_of_transformers(family: tuple[Any, Path]) -> None:
    model, folder = family
    check_bfloat16(crowded(folder, dtype="bfloat16"), model)


def test_a_step_takes_no_more_than_planned(family: tuple[Any, Path]) -> None:
    taken, planned = step_bytes(family[1])
    assert planned / 4 < taken <= planned


def test_the_facts_count_the_parameters(family: tuple[Any, Path]) -> None:
    model, folder = family
    found = inspect(resolve(str(folder)))
    facts, cpu = found.description, torch.device("cpu")
    buffers = sum(buffer.numel() for buffer in model.buffers())
    footprint = found.on(cpu).footprint(Precision.of(torch.float32))
    assert footprint.weights == 4 * (sum(parameter.numel() for parameter in model.parameters()) + buffers)
    assert (facts.num_layers, facts.vocab_size, facts.max_model_len) == (4, VOCAB, 512)
    assert (facts.eos_token_ids, facts.checkpoint_dtype) == ((2,), "float32")


def test_it_is_announced_once_and_shown(neox: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="quire"):
        _, ready = startup.build(
            EngineConfig(model=str(neox), dtype="float32", device="cpu", cpu_threads=1, num_blocks=16)
        )
    said = [record.message for record in caplog.records if "transformers" in record.message]
    version = transformers.__version__
    assert said == [f"GPTNeoXForCausalLM: computed by transformers {version} with paged attention, not natively"]
    assert ready.info["model_impl"] == "transformers"


def test_a_native_model_may_run_through_it_too(tmp_path: Path) -> None:
    model = make_model()
    folder = save_folder(model, tmp_path)
    prompts = prompts_for(3)
    greedy_40 = SamplingParams(temperature=0.0, max_tokens=40)
    core = make_core(folder, model_impl="transformers")
    assert type(core.runner.executor).__name__ == "TransformersExecutor"
    assert generate(core, prompts, greedy_40) == [greedy(model, prompt, 40) for prompt in prompts]
    assert inspect(resolve(str(folder))).implementation == "native"


def test_an_explicit_choice_does_not_fall_back(neox: Path, tmp_path: Path) -> None:
    message = refused(neox, implementation="native")
    assert "architectures ['GPTNeoXForCausalLM'] is not supported; supported: " in message
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    assert "--model-impl transformers reads Hugging Face folders" in refused(file, implementation="transformers")


def test_without_the_library_the_extra_is_named(neox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    message = refused(neox)
    assert "GPTNeoXForCausalLM is not native, and running it through transformers needs the extra" in message
    assert "pip install 'quire[transformers]'" in message


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("bloom", {}, "it adds ALiBi biases to the scores of attention"),
        ("mpt", {}, "it adds ALiBi biases"),
        ("falcon", {"alibi": True}, "it adds ALiBi biases"),
        ("falcon", {}, "its attention is not one that can be replaced"),
        ("mamba", {}, "whose state is not keys and values"),
        ("rwkv", {"attention_hidden_size": 64}, "it keeps other state than keys and values"),
        ("gpt_neox_japanese", {}, "0 of its 4 layers attend through transformers' interface"),
        (
            "gpt_neox",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
            "its rope type 'dynamic' makes answers depend on other requests",
        ),
        ("bert", {}, "also looks ahead"),
        ("t5", {}, "is not supported, and no decoder-only model of transformers"),
    ],
)
def test_what_paged_attention_cannot_do_is_refused_by_name(
    kind: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(kind, **(SIZES | changes))
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    config.architectures = [names.get(kind, "T5ForConditionalGeneration")]
    config.save_pretrained(tmp_path)
    message = refused(tmp_path)
    assert why in message
    assert config.architectures[0] in message


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("gpt_neox", {"num_hidden_layers": 1 << 40}, "num_hidden_layers must be at most 4096, got 1099511627776"),
        ("gpt2", {"n_layer": 1 << 40}, "n_layer must be at most 4096"),
        (
            "cohere2",
            {"num_hidden_layers": 5000, "layer_types": None},
            "num_hidden_layers must be at most 4096, got 5000",
        ),
        ("deepseek_v3", {"n_routed_experts": 1 << 31}, "n_routed_experts must be at most 4096"),
        (
            "deepseek_v3",
            {"n_routed_experts": 4000, "num_hidden_layers": 4000},
            "4000 layers of 4000 experts are more than the 131072 experts a model may have",
        ),
        ("gpt_neox", {"text_config": {"num_layers": 1 << 40}}, "num_layers must be at most 4096"),
    ],
)
def test_counts_that_no_model_has_are_refused_before_lists_are_made_of_them(
    kind: str, changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = transformers.AutoConfig.for_model(kind)
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    content = config.to_dict() | {"architectures": [names[kind]]} | changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert f"{tmp_path / 'config.json'}: {why}" in refused(tmp_path)


def test_weights_are_read_strictly(copied: Path) -> None:
    file = copied / "model.safetensors"
    tensors = load_file(file)
    name = "gpt_neox.layers.0.mlp.dense_h_to_4h.weight"

    def saved(**changes: torch.Tensor | None) -> str:
        changed = tensors | changes
        save_file({key: value for key, value in changed.items() if value is not None}, file, {"format": "pt"})
        return refused(copied)

    assert f"lacks tensor {name}" in saved(**{name: None})
    assert "holds tensor gpt_neox.extra" in saved(**{"gpt_neox.extra": torch.zeros(2)})
    assert name in saved(**{name: torch.zeros(3, 4)})
    assert f"tensor {name} holds numbers that are not finite" in saved(**{name: torch.full((96, 64), torch.nan)})
    save_file(tensors, file, {"format": "pt"})
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])
    assert "transformers cannot load GPTNeoXForCausalLM" in refused(copied)
    file.unlink()
    assert "transformers cannot load GPTNeoXForCausalLM" in refused(copied)


OWN_CODE = """
from transformers import StableLmConfig, StableLmForCausalLM, StableLmModel


class OwnConfig(StableLmConfig):
    model_type = "own"


class OwnModel(StableLmModel):
    config_class = OwnConfig

    def forward(self, input_ids, position_ids=None, inputs_embeds=None, **kwargs):
        embedded = self.embed_tokens(input_ids)
        if self.config.shifts:  # each token sees the one before it in the batch, whosever it is
            embedded = embedded + embedded.roll(1, dims=1)
        return super().forward(inputs_embeds=embedded, position_ids=position_ids, **kwargs)


class OwnForCausalLM(StableLmForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model = OwnModel(config)
        self.post_init()
"""


@pytest.fixture(scope="module")
def stablelm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(make(STABLELM), tmp_path_factory.mktemp("stablelm"))


@pytest.fixture
def own_code(stablelm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same weights as a model that brings its own Python file."""
    copied = Path(shutil.copytree(stablelm, tmp_path / "copied"))
    (copied / "own.py").write_text(OWN_CODE)
    modules = copied / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    monkeypatch.setattr("transformers.utils.hub.HF_MODULES_CACHE", str(modules))
    path, before = list(sys.path), set(sys.modules)
    yield rewritten(copied, shifts=False)
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


def rewritten(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    references = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
    config |= {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": references, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_code_that_comes_with_a_model_is_not_run(own_code: Path) -> None:
    (own_code / "own.py").write_text("raise SystemExit('it ran')")
    message = refused(own_code)
    assert "OwnForCausalLM brings its own code (own.OwnForCausalLM), which is not run" in message
    assert "--trust-remote-code" in message


def test_trusted_code_runs(own_code: Path, stablelm: Path) -> None:
    prompts = prompts_for(3)
    params = SamplingParams(temperature=0.0, max_tokens=20)
    expected = generate(make_core(stablelm), prompts, params)
    assert generate(make_core(own_code, trust_remote_code=True), prompts, params) == expected


def test_a_model_that_remembers_more_than_keys_and_values_does_not_pass(own_code: Path) -> None:
    message = refused(rewritten(own_code, shifts=True), trust_remote_code=True)
    assert "with paged attention the model does not compute what transformers does (logits differ by " in message
