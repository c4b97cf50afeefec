"""The configuration: precedence, spellings, and a sentence for every bad value."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.config import EngineConfig, ServeConfig, load, parse_bytes
from quire.config.describe import bound_of, flag_of, kind_of, variable_of
from quire.errors import ConfigError


def write(folder: Path, text: str) -> Path:
    file = folder / "quire.yaml"
    file.write_text(text)
    return file


def test_a_flag_wins_over_a_variable_over_the_file_over_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "max_num_seqs: 1\nblock-size: 8\nport: 1234\nmax_seq_len: 77\napi_key: [a, b]\n")
    environ = {"QUIRE_MAX_NUM_SEQS": "2", "QUIRE_BLOCK_SIZE": "4", "QUIRE_SERVED_MODEL_NAME": "x, y"}
    config = load(ServeConfig, flags={"max_num_seqs": "3"}, environ=environ, file=file)
    assert (config.max_num_seqs, config.block_size, config.port, config.host) == (3, 4, 1234, "0.0.0.0")
    assert (config.max_model_len, config.served_model_name, config.api_key) == (77, ("x", "y"), ("a", "b"))


def test_an_empty_key_is_refused_and_the_others_are_not_shown(tmp_path: Path) -> None:
    words = "--api-key must be a list of non-empty texts, got ''$"
    with pytest.raises(ConfigError, match=words):
        load(ServeConfig, flags={"api_key": ("secret", "")}, environ={})
    file = write(tmp_path, "api_key: ['']\n")
    with pytest.raises(ConfigError, match=f"^api_key in {file} must be a list of non-empty texts, got ''$"):
        load(ServeConfig, flags={}, environ={}, file=file)


@pytest.mark.parametrize("written", ["''", "' , '", "[]", '""'])
def test_keys_that_are_set_to_nothing_do_not_open_the_server(tmp_path: Path, written: str) -> None:
    file = write(tmp_path, f"api_key: {written}\n")
    with pytest.raises(
        ConfigError, match=f"^api_key in {file} must be a list of non-empty texts, got .*; leave it out"
    ):
        load(ServeConfig, flags={}, environ={}, file=file)
    if written != "[]":
        text = written.strip("'\"") or ","
        with pytest.raises(ConfigError, match=r"^QUIRE_API_KEY must be .* non-empty texts, got .*; leave it out"):
            load(ServeConfig, flags={}, environ={"QUIRE_API_KEY": text})
    assert load(ServeConfig, flags={}, environ={"QUIRE_API_KEY": ""}).api_key == ()
    assert (
        load(ServeConfig, flags={}, environ={}, file=write(tmp_path, "api_key:\nserved_model_name: ''\n")).api_key == ()
    )


@pytest.mark.parametrize(
    ("fields", "source"),
    [
        ({}, ("m", "main")),
        ({"revision": "v1"}, ("m", "v1")),
        ({"revision": "v1", "tokenizer_revision": "t2"}, ("m", "t2")),
        ({"revision": "v1", "tokenizer": "org/t"}, ("org/t", "main")),
        ({"revision": "v1", "tokenizer": "org/t", "tokenizer_revision": "t2"}, ("org/t", "t2")),
    ],
)
def test_what_holds_the_tokenizer(fields: dict[str, str], source: tuple[str, str]) -> None:
    assert EngineConfig(model="m", **fields).tokenizer_source == source


@pytest.mark.parametrize(
    ("value", "meaning"),
    [*((yes, True) for yes in ("true", "True", "1", "yes", "on")), ("false", False), ("off", False)],
)
def test_booleans(value: str, meaning: bool) -> None:
    assert load(EngineConfig, flags={"enable_prefix_caching": value}, environ={}).enable_prefix_caching is meaning


def test_what_kubernetes_puts_into_variables_is_not_ours() -> None:
    environ = {"QUIRE_PORT": "tcp://10.0.0.1:80", "QUIRE_SERVICE_HOST": "10.0.0.1", "QUIRE_HOST": ""}
    assert load(ServeConfig, flags={}, environ=environ) == ServeConfig()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"max_num_seqs": "0"}, "--max-num-seqs must be an integer between 1 and 4096, got '0'"),
        ({"max_num_seqs": "many"}, "--max-num-seqs must be an integer between 1 and 4096, got 'many'"),
        ({"max_model_len": "-1"}, "--max-model-len must be an integer at least 1, got '-1'"),
        (
            {"gpu_memory_utilization": "1.5"},
            "--gpu-memory-utilization must be a number above 0.0 and at most 1.0, got '1.5'",
        ),
        ({"device": "tpu"}, "--device must be one of auto, cpu or cuda, got 'tpu'"),
        ({"tensor_parallel_size": "2"}, "--tensor-parallel-size must be 1, got '2'"),
        ({"kv_cache_memory": "4Q"}, "--kv-cache-memory must be a size such as 512Mi or 4Gi, got '4Q'"),
        ({"max_body_size": "-1"}, "--max-body-size must be a size such as 512Mi or 4Gi, got '-1'"),
        ({"enable_prefix_caching": "maybe"}, "--enable-prefix-caching must be true or false, got 'maybe'"),
        ({"model": ""}, "--model must be a non-empty text, got ''"),
        (
            {"metric_namespace": "9x"},
            "--metric-namespace must be a text that matches ^[a-zA-Z_][a-zA-Z0-9_]*$, got '9x'",
        ),
    ],
)
def test_a_bad_value_gets_one_sentence(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(ServeConfig, flags=flags, environ={})
    assert str(caught.value) == sentence


def test_the_sentence_says_where_the_value_came_from(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^QUIRE_PORT must be an integer between 1 and 65535, got '0'$"):
        load(ServeConfig, flags={}, environ={"QUIRE_PORT": "0"})
    file = write(tmp_path, "port: 0")
    with pytest.raises(ConfigError, match=r"^port in .*quire\.yaml must be an integer"):
        load(ServeConfig, flags={}, environ={}, file=file)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1", "'prot' in .* is no field of the configuration; did you mean port"),
        ("- 1", "must hold a mapping"),
        ("a: [", "readable YAML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(ServeConfig, flags={}, environ={}, file=write(tmp_path, text))
    with pytest.raises(ConfigError, match="--config"):
        load(ServeConfig, flags={}, environ={}, file=tmp_path / "absent.yaml")


def test_every_field_has_a_meaning_a_kind_and_a_bound() -> None:
    for name, field in ServeConfig.model_fields.items():
        assert field.description, name
        assert bound_of(ServeConfig, name)
        assert kind_of(ServeConfig, name) in {"bool", "int", "float", "size", "choice", "text", "list"}
        assert (flag_of(name), variable_of(name)) == ("--" + name.replace("_", "-"), "QUIRE_" + name.upper())


def test_the_engines_part() -> None:
    config = ServeConfig(max_num_seqs=5, port=1)
    assert config.engine() == EngineConfig(max_num_seqs=5)


@given(st.integers(0, 10**6), st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]))
def test_sizes(number: int, unit: str) -> None:
    power = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}[unit[:1]]
    assert parse_bytes(f"{number}{unit}", flag="--x") == number * (1024 if unit.endswith("i") else 1000) ** power


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "-1", "1e3", "nan", "1GiGi", "0x10"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="--x must be a size"):
        parse_bytes(text, flag="--x")
