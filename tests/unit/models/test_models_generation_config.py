"""Sampling defaults of a model's generation_config.json: what is taken, what is refused, where they hold."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from live_server import Live, ids_of, live_server
from quire import LLM, EngineArgs, LLMEngine, SamplingParams
from quire.errors import ConfigError, ModelError
from quire.models.generation_config import SamplingDefaults, sampling_defaults
from quire.models.loader import inspect
from quire.models.source import ModelFiles, resolve
from quire_testing.tiny_llama import make_model, save_folder
from scripted_engine import ScriptedEngine
from tiny_api import tiny_folder

OWN = {"temperature": 0.6, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.05}


def written(folder: Path, **fields: Any) -> ModelFiles:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0], "do_sample": True, **fields}))
    return ModelFiles("folder", folder, "tiny")


def test_what_a_file_says(tmp_path: Path) -> None:
    defaults = sampling_defaults("auto", written(tmp_path, **OWN, max_new_tokens=2048, no_repeat_ngram_size=3))
    assert (defaults.values, defaults.max_tokens) == (OWN, 2048)
    assert defaults.params() == SamplingParams(**OWN, max_tokens=2048)
    place = tmp_path / "generation_config.json"
    assert defaults.notice == (
        f"sampling defaults of {place}: temperature 0.6, top_k 20, top_p 0.8, min_p 0.05, repetition_penalty 1.05, "
        "max_tokens 2048; --generation-config none leaves them out"
    )


def test_do_sample_is_not_read_as_in_vllm(tmp_path: Path) -> None:
    """transformers would be greedy."""
    defaults = sampling_defaults("auto", written(tmp_path, top_k=7, do_sample=False))
    assert (defaults.values, defaults.params().temperature) == ({"top_k": 7}, 1.0)


def test_what_says_nothing(tmp_path: Path) -> None:
    """No file, a GGUF file beside one, nulls, and values that are the usual ones."""
    assert sampling_defaults("auto", ModelFiles("folder", tmp_path, "tiny")) == SamplingDefaults()
    files = written(tmp_path, temperature=1.0, top_p=None, top_k=0)
    found = sampling_defaults("auto", files)
    assert (found.values, found.max_tokens, found.notice) == ({}, None, "")
    written(tmp_path, **OWN)
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert sampling_defaults("auto", ModelFiles("gguf", tmp_path / "tiny.gguf", "tiny")) == SamplingDefaults()
    assert [sampling_defaults(choice, files) for choice in ("none", "vllm")] == [SamplingDefaults()] * 2


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    written(tmp_path / "own", top_k=7)
    gguf = ModelFiles("gguf", tmp_path / "tiny.gguf", "tiny")
    for choice in (tmp_path / "own", tmp_path / "own" / "generation_config.json"):
        assert sampling_defaults(str(choice), gguf).values == {"top_k": 7}
    with pytest.raises(ConfigError, match=r"--generation-config must be auto, none, a file .*, got 'defaults'"):
        sampling_defaults("defaults", gguf)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -0.5}, "temperature must be between 0 and 100, got -0.5"),
        ({"temperature": "0.5"}, "temperature must be a number .*, got '0.5'"),
        ({"temperature": True}, "temperature must be a number .*, got True"),
        ({"top_k": 2.5}, r"top_k must be an integer .*, got 2\.5"),
        ({"top_p": float("nan")}, "top_p must be above 0 and at most 1, got nan"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a positive integer, got 0"),
    ],
)
def test_a_bad_file_is_named(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"generation_config.json: {message}"):
        sampling_defaults("auto", written(tmp_path, **fields))


def test_end_tokens_are_those_of_this_file_where_it_names_any(tmp_path: Path) -> None:
    def ends() -> tuple[int, ...]:
        return inspect(resolve(str(tmp_path))).description.eos_token_ids

    save_folder(make_model(), tmp_path)
    written(tmp_path)
    assert ends() == (2, 0)
    (tmp_path / "generation_config.json").write_text("{}")
    assert ends() == (2,)
    (tmp_path / "generation_config.json").unlink()
    assert ends() == (2,)


# --- Python -----------------------------------------------------------------------------------------------------


def small(folder: Path, **options: Any) -> dict[str, Any]:
    return {"model": folder, "dtype": "float32", "cpu_threads": 1, "num_blocks": 32, "max_model_len": 128, **options}


def test_llm_uses_them_where_no_parameters_are_given(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tiny_folder(tmp_path)
    plain = LLM(**small(folder))
    written(folder, repetition_penalty=5.0, temperature=0.0, max_new_tokens=24)
    with caplog.at_level(logging.WARNING, logger="quire"):
        llm = LLM(**small(folder))
    said = [record.message for record in caplog.records if "sampling defaults" in record.message]
    assert len(said) == 1 and said[0].endswith(
        "temperature 0, repetition_penalty 5, max_tokens 24; --generation-config none leaves them out"
    )
    own = SamplingParams(temperature=0.0, repetition_penalty=5.0, max_tokens=24)
    default = llm.get_default_sampling_params()
    assert default == own
    default.max_tokens = 3  # the caller's to change
    assert llm.get_default_sampling_params() == own
    [answer], [penalised] = llm.generate([[5, 6, 7]]), plain.generate([[5, 6, 7]], own)
    assert answer.outputs == penalised.outputs
    [explicit] = llm.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=24))
    [usual] = plain.generate([[5, 6, 7]], SamplingParams(temperature=0.0, max_tokens=24))
    assert explicit.outputs == usual.outputs != answer.outputs
    none = LLM(**small(folder, generation_config="vllm"))
    assert none.get_default_sampling_params() == SamplingParams()


def test_an_engine_stepped_by_hand_uses_them(tmp_path: Path) -> None:
    written(tiny_folder(tmp_path), temperature=0.0, max_new_tokens=5)
    engine = LLMEngine.from_engine_args(EngineArgs(**small(tmp_path)))
    engine.add_request("a", [5, 6, 7])
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert len(outputs[0].outputs[0].token_ids) == 5


# --- the server -------------------------------------------------------------------------------------------------


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with live_server(tmp_path / "folder", ScriptedEngine(lambda _: ids_of("hi"))) as server:
        server.frontend.defaults = SamplingDefaults(OWN, max_tokens=40)
        yield server


async def asked(live: Live, **fields: Any) -> SamplingParams:
    """What the engine was asked for."""
    response = await live.complete(**fields)
    assert response.status_code == 200, response.text
    return live.engine.requests[-1].params


async def test_requests_that_set_nothing_get_them(live: Live) -> None:
    params = await asked(live)
    assert {name: getattr(params, name) for name in OWN} == OWN
    assert params.max_tokens == 40
    assert (await live.chat(temperature=None)).status_code == 200
    assert live.engine.requests[-1].params.temperature == 0.6


async def test_explicit_values_win(live: Live) -> None:
    off = {"temperature": 1.0, "top_k": -1, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    params = await asked(live, **off, max_tokens=60)
    assert {name: getattr(params, name) for name in off} == off
    assert params.max_tokens == 60
    params = await asked(live, top_p=0.3)
    assert (params.top_p, params.top_k) == (0.3, 20)


async def test_a_default_length_gives_way_to_the_room_and_to_min_tokens(live: Live) -> None:
    assert (await asked(live, prompt=[5] * 100)).max_tokens == 28
    assert (await asked(live, min_tokens=50)).max_tokens == 50
    live.frontend.defaults = SamplingDefaults({}, max_tokens=4096)
    assert (await asked(live, prompt=[5] * 100, truncate_prompt_tokens=-1)).max_tokens == 28
    assert len(live.engine.requests[-1].prompt_token_ids) == 100
