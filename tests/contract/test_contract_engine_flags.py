"""Both sides of `spec.engine`: each field is a flag `quire serve` accepts, with the same choices, bounds and default."""

from __future__ import annotations

import typing
from typing import Any

import pytest
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from operator_kit import owner
from quire.config import ServeConfig, load
from quire.config.describe import flag_names
from quire.errors import ConfigError
from quire_operator.api import OPERATOR_OWNED_FLAGS, Engine, seconds
from quire_operator.resources.args import flag_name, serve_args

FIELDS = sorted(set(Engine.model_fields) - {"extra_args"})

_KEYS = "a gateway's business in a cluster; extraArgs, with the file mounted from a Secret"

_GRAMMARS = "limits of structured outputs, whose defaults follow the pod's; extraArgs"

NOT_OFFERED = {
    "max_grammars": _GRAMMARS,
    "max_compiling_grammars": _GRAMMARS,
    "max_grammar_size": _GRAMMARS,
    "grammar_memory": _GRAMMARS,
    "grammar_compile_timeout": _GRAMMARS,
    "grammar_token_timeout": _GRAMMARS,
    "grammar_mean_token_time": _GRAMMARS,
    "packed_cache": "outlives a pod only on a volume of its own: extraArgs, with the volume mounted by spec.template",
    "packed_cache_size": "as packed_cache",
    "api_key_file": _KEYS,
    "jwt_keys": _KEYS,
    "jwt_audience": _KEYS,
    "jwt_issuer": _KEYS,
    "jwt_leeway": _KEYS,
    "requests_per_minute": _KEYS,
    "tokens_per_minute": _KEYS,
    "max_concurrent": _KEYS,
    "client_timeout": "the router is the client, and reads at once; extraArgs",
    "cors_allow_origin": "browsers do not reach pods; extraArgs",
    "web_page": "browsers do not reach pods; through a port-forward it is welcome, and extraArgs turn it off",
    "filter": "needs files or packages that the image does not have; extraArgs",
    "otlp_endpoint": "needs a package that the image does not have; extraArgs",
    "log_format": "of the pod's log, whatever collects it; extraArgs",
    "log_requests": "prompts in a log are said on purpose, in extraArgs",
    "deterministic": "where it holds it is the default; the flag checks it at the start",
    "logits_processors": "needs a package that the image does not have; an own image names it in extraArgs",
    "pooling": "models that embed say so themselves; extraArgs",
    "model_impl": "for developers; auto is right in a cluster",
    "trust_remote_code": "runs code of a model in the pod; whoever wants that says so in extraArgs",
}
"""Flags of the engine that are deliberately no field of spec.engine, and why."""

AHEAD = ("tensor_parallel_size", "pipeline_parallel_size")
"""The operator can lay out more than this release's engine can use, which says so at its start."""

SAMPLES: dict[str, Any] = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "device": "cpu",
    "dtype": "float32",
    "quantization": "int8",
    "kv_cache_dtype": "float32",
    "tokenizer": "org/name",
    "tokenizer_revision": "v1",
    "generation_config": "none",
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "block_size": 32,
    "num_blocks": 64,
    "kv_cache_memory": "512Mi",
    "gpu_memory_utilization": "0.5",
    "enable_prefix_caching": False,
    "swap_space": "64Mi",
    "scheduler_policy": "sjf",
    "long_prefill_token_threshold": 128,
    "seed": 7,
    "cpu_threads": 2,
    "chat_template": "/cache/template.jinja",
    "tool_call_parser": "hermes",
    "reasoning_parser": "qwen3",
    "max_queue_size": 10,
    "queue_timeout": "1m30s",
    "load_timeout": "1h",
    "liveness_timeout": "45s",
    "max_body_size": "1Mi",
    "metrics_compat": "vllm",
    "log_level": "debug",
}


def literals(annotation: Any) -> set[str]:
    """All choices anywhere in a type."""
    if typing.get_origin(annotation) is typing.Literal:
        return set(typing.get_args(annotation))
    return {choice for inner in typing.get_args(annotation) for choice in literals(inner)}


def bounds(field: FieldInfo) -> tuple[float | None, float | None]:
    low = next((each.ge for each in field.metadata if isinstance(each, Ge)), None)
    high = next((each.le for each in field.metadata if isinstance(each, Le)), None)
    return low, high  # type: ignore[return-value]


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_is_a_flag(name: str) -> None:
    assert name in ServeConfig.model_fields, f"spec.engine.{name} is no flag of the engine"
    assert flag_name(name) == flag_names(name)[0]


@pytest.mark.parametrize("name", sorted(ServeConfig.model_fields))
def test_each_flag_is_offered_owned_or_left_out_on_purpose(name: str) -> None:
    owned = name.replace("_", "-") in OPERATOR_OWNED_FLAGS
    assert (name in FIELDS) + owned + (name in NOT_OFFERED) == 1, f"decide about --{name.replace('_', '-')}"


@pytest.mark.parametrize("name", FIELDS)
def test_choices_are_ones_the_engine_knows(name: str) -> None:
    ours, theirs = literals(Engine.model_fields[name].annotation), literals(ServeConfig.model_fields[name].annotation)
    assert ours <= theirs
    assert bool(ours) == bool(theirs)


@pytest.mark.parametrize("name", sorted(set(FIELDS) - set(AHEAD)))
def test_bounds_lie_within_those_of_the_engine(name: str) -> None:
    (low, high), (their_low, their_high) = bounds(Engine.model_fields[name]), bounds(ServeConfig.model_fields[name])
    if low is not None or high is not None:
        assert their_low is None or (low is not None and low >= their_low)
        assert their_high is None or (high is not None and high <= their_high)


@pytest.mark.parametrize("name", AHEAD)
def test_what_the_engine_cannot_do_yet_it_refuses_with_a_sentence(name: str) -> None:
    """When this fails the engine can: then `bounds` hold for it as for the others."""
    with pytest.raises(ConfigError, match=flag_name(name)):
        load(ServeConfig, flags={"model": "m", name: "2"}, environ={})


@pytest.mark.parametrize("name", FIELDS)
def test_the_default_told_is_the_engines(name: str) -> None:
    default = ServeConfig.model_fields[name].default
    if default is None:
        return
    told = (Engine.model_fields[name].description or "").rsplit("Default: ", 1)[1].removesuffix(".")
    actual = str(default).lower() if isinstance(default, bool) else str(default)
    if name.endswith("_timeout"):
        told, actual = str(seconds(told)), str(int(default))
    if name == "gpu_memory_utilization":
        told, actual = str(float(told)), str(float(actual))
    assert told == actual


def test_the_engine_accepts_what_the_operator_passes() -> None:
    assert set(SAMPLES) == set(FIELDS), "give each field a sample value"
    engine = Engine.model_validate(SAMPLES).model_dump(by_alias=True, exclude_none=True)
    spec = {
        "model": {"source": "hf://org/name", "servedName": "m", "aliases": ["n"]},
        "engine": engine,
    }
    command, model, *arguments = serve_args(owner(spec))
    assert command == "serve" and model.startswith("/mnt/model/")
    flags: dict[str, Any] = {"model": model}
    for argument in arguments:
        flag, _, value = argument.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if name == "served_model_name":
            flags[name] = (*flags.get(name, ()), value)
        else:
            flags[name] = value
    config = load(ServeConfig, flags=flags, environ={})
    assert isinstance(config, ServeConfig)
    assert (config.max_num_seqs, config.queue_timeout, config.enable_prefix_caching) == (8, 90.0, False)
    assert (config.served_model_name, config.port) == (("m", "n"), 8000)
