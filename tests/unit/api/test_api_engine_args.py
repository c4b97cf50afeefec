"""Engine arguments: vLLM's names, one clear sentence for what cannot be."""

from __future__ import annotations

import argparse
import dataclasses
import io
import logging
from pathlib import Path

import pytest

from quire import LLM, AsyncEngineArgs, EngineArgs, FlexibleArgumentParser
from quire.api.engine_thread import _level
from quire.config import EngineConfig
from quire.errors import ConfigError
from quire.logs import speak_up
from tiny_api import tiny_folder


def test_every_field_of_the_configuration_is_an_argument() -> None:
    config = EngineConfig()
    args = EngineArgs()
    assert {field.name for field in dataclasses.fields(EngineArgs)} == set(EngineConfig.model_fields)
    assert dataclasses.asdict(args) == config.model_dump()
    assert args.create_engine_config() == config
    assert AsyncEngineArgs is EngineArgs
    assert repr(EngineArgs(model="m", max_num_seqs=3)).startswith("EngineArgs(model='m', ")


def test_other_names_of_a_field() -> None:
    args = EngineArgs(
        "m", max_seq_len=100, num_gpu_blocks_override=7, scheduling_policy="fcfs", kv_cache_memory_bytes=1 << 20
    )
    config = args.create_engine_config()
    assert (config.model, config.max_model_len, config.num_blocks) == ("m", 100, 7)
    assert (config.scheduler_policy, config.kv_cache_memory) == ("fcfs", "1048576")
    with pytest.raises(ConfigError, match="max_model_len is given twice, once as max_model_len"):
        EngineArgs(max_seq_len=100, max_model_len=100)


def test_other_names_of_a_type() -> None:
    dtypes = [EngineArgs(dtype=name).create_engine_config().dtype for name in ("half", "float", "bfloat16")]
    assert dtypes == ["float16", "float32", "bfloat16"]


def test_none_is_the_default_and_fields_may_be_set() -> None:
    args = EngineArgs(model=None, max_num_seqs=None, dtype="float32")
    assert args == EngineArgs(dtype="float32")
    args.max_num_seqs = 5
    assert args.create_engine_config().max_num_seqs == 5
    again = EngineArgs(**(dataclasses.asdict(args) | {"seed": 4}))
    assert (again.max_num_seqs, again.seed) == (5, 4)


def test_bounds_are_checked_when_the_configuration_is_made() -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs must be an integer between 1 and 4096, got 0"):
        EngineArgs(max_num_seqs=0).create_engine_config()
    with pytest.raises(ConfigError, match=r"--dtype must be .*, got 'float17'"):
        EngineArgs(dtype="float17").create_engine_config()


def test_what_only_concerns_speed_is_taken_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "quire"):
        args = EngineArgs(enforce_eager=True, disable_log_stats=True, compilation_config={"level": 3})
    assert args == EngineArgs()
    assert "enforce_eager=True has no effect: every step runs eagerly" in caplog.text


@pytest.mark.parametrize(
    ("name", "accepted", "refused", "message"),
    [
        ("enable_lora", False, True, "enable_lora can only be False here, got True: there are no adapters yet"),
        ("load_format", "auto", "dummy", "load_format can only be 'auto' here, got 'dummy'"),
        ("task", "generate", "embed", "task can only be 'auto' or 'generate' here, got 'embed'"),
        ("speculative_config", None, {"model": "x"}, "speculative_config can only be None here"),
        ("data_parallel_size", 1, 2, "data_parallel_size can only be 1 here, got 2: run several replicas"),
    ],
)
def test_what_quire_has_one_value_for(name: str, accepted: object, refused: object, message: str) -> None:
    assert EngineArgs(**{name: accepted}) == EngineArgs()
    with pytest.raises(ConfigError) as caught:
        EngineArgs(**{name: refused})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("max_num_seq", "max_num_seqs"),
        ("max_seq_length", "max_seq_len"),
        ("gpu_memory_utilisation", "gpu_memory_utilization"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, near: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no engine argument {name}; did you mean {near}"):
        EngineArgs(**{name: 1})
    with pytest.raises(ConfigError, match=r"there is no engine argument xyzzy$"):
        EngineArgs(xyzzy=1)


def test_from_a_command_line() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--prompt")
    flags = ["--model", "m", "--max-seq-len=64", "--no-enable-prefix-caching", "--prompt", "x"]
    config = EngineArgs.from_cli_args(parser.parse_args(flags)).create_engine_config()
    assert (config.model, config.max_model_len, config.enable_prefix_caching) == ("m", 64, False)
    assert EngineArgs.from_cli_args(parser.parse_args([])) == EngineArgs()


def test_the_parser_that_programs_make_takes_underscores() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    parser.add_argument("--my_flag")
    args = parser.parse_args(
        ["--max_model_len=64", "--my_flag", "a_b", "--max_num_seqs", "4", "--no_enable_prefix_caching"]
    )
    assert (args.my_flag, args.max_model_len) == ("a_b", "64")
    config = EngineArgs.from_cli_args(args).create_engine_config()
    assert (config.max_model_len, config.max_num_seqs, config.enable_prefix_caching) == (64, 4, False)


def test_a_terminal_hears_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    logger, terminal = logging.getLogger("quire"), Terminal()
    for name, value in [("handlers", []), ("level", logging.NOTSET)]:
        monkeypatch.setattr(logger, name, value)
    speak_up(terminal)
    assert not logger.handlers, "the program has logging of its own (pytest's)"
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    speak_up(io.StringIO())
    assert not logger.handlers, "nobody reads it"
    monkeypatch.setattr("sys.stderr", terminal)
    EngineArgs(enforce_eager=True)
    EngineArgs()
    assert terminal.getvalue().count("enforce_eager=True has no effect") == 1
    assert _level() == "info"
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # what it remembers of levels


def test_an_llm_is_made_of_them(tmp_path: Path) -> None:
    args = EngineArgs(model=tiny_folder(tmp_path), dtype="float32", cpu_threads=1, num_blocks=16, max_seq_len=100)
    llm = LLM.from_engine_args(args)
    assert (llm.ready.num_blocks, llm.ready.max_model_len, llm.config.dtype) == (16, 100, "float32")


def test_swap_space_is_a_number_of_gib_as_in_vllm() -> None:
    sizes = [EngineArgs(swap_space=size).create_engine_config().swap_space for size in (4, 0.5, 0, "512Mi", None)]
    assert sizes == ["4Gi", "0.5Gi", "0Gi", "512Mi", None]
    args = EngineArgs(swap_space=4)
    assert EngineArgs(**dataclasses.asdict(args)) == args
    args.swap_space = 2
    assert args.create_engine_config().swap_space == "2Gi"
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    for text, expected in [("4", "4Gi"), ("0.5", "0.5Gi"), ("512Mi", "512Mi")]:
        config = EngineArgs.from_cli_args(parser.parse_args(["--swap-space", text])).create_engine_config()
        assert config.swap_space == expected
