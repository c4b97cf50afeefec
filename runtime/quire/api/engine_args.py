"""`EngineArgs`: the fields of `EngineConfig` under the names that users of vLLM know.

A name that vLLM has and Quire does not is accepted where its value asks for what Quire does anyway, or only concerns speed
(said once in the log); any other value, and any other name, is refused with a sentence.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.config import ALIASES, EngineConfig, load
from quire.config.describe import description, flag_names, kind_of
from quire.errors import ConfigError
from quire.logs import speak_up

_log = logging.getLogger(__name__)

VLLM_ALIASES: dict[str, str] = {
    "scheduling_policy": "scheduler_policy",
    "num_gpu_blocks_override": "num_blocks",
    "kv_cache_memory_bytes": "kv_cache_memory",
}
"""vLLM's names of fields that are called otherwise here."""

IN_GIB = frozenset({"swap_space"})
"""Fields that vLLM takes as a number of GiB; here a number alone would be bytes."""

NO_EFFECT: dict[str, str] = {
    "enforce_eager": "every step runs eagerly, there are no graphs to capture",
    "compilation_config": "nothing is compiled at the start",
    "optimization_level": "nothing is compiled at the start",
    "max_seq_len_to_capture": "there are no graphs to capture",
    "disable_custom_all_reduce": "there is no all-reduce",
    "disable_log_stats": "figures are in StepStats and /metrics, not in the log",
    "disable_log_requests": "requests are not logged",
    "max_logprobs": "up to 1024 log probabilities of a token are told in any case",
    "max_parallel_loading_workers": "one process loads the weights",
    "ray_workers_use_nsight": "there are no Ray workers",
}
"""vLLM's parameters that change no answer, and why they change nothing here either."""

ONLY: dict[str, tuple[tuple[object, ...], str]] = {
    "tokenizer_mode": (("auto",), "every tokenizer is the fast one"),
    "code_revision": ((None,), "code comes from the model's own revision"),
    "skip_tokenizer_init": ((False,), "answers are decoded here"),
    "load_format": (("auto",), "the format is seen from the files"),
    "download_dir": ((None,), "set HF_HOME for hub models, QUIRE_CACHE_DIR for bundled ones"),
    "hf_token": ((None, False), "set HF_TOKEN"),
    "hf_overrides": ((None, {}), "change config.json in a local folder"),
    "task": (("auto", "generate"), "models generate text"),
    "runner": (("auto", "generate"), "models generate text"),
    "convert": (("auto", "none"), "models generate text"),
    "override_generation_config": ((None, {}), "give SamplingParams"),
    "enable_chunked_prefill": ((None, True), "long prompts are always computed in chunks"),
    "disable_sliding_window": ((False,), "a model is run as it was trained"),
    "async_scheduling": ((None, False), "a step is scheduled when the one before has ended"),
    "enable_log_requests": ((False,), "requests are not logged"),
    "cpu_offload_gb": ((0,), "weights are on one device"),
    "data_parallel_size": ((1,), "run several replicas"),
    "distributed_executor_backend": ((None, "mp", "uni"), "an engine is one process"),
    "enable_expert_parallel": ((False,), "an engine is one process"),
    "enable_lora": ((False,), "there are no adapters yet"),
    "speculative_config": ((None,), "there is no speculative decoding yet"),
    "enable_sleep_mode": ((False,), "an engine keeps its memory until it ends"),
    "kv_transfer_config": ((None,), "there is no disaggregated prefill yet"),
    "limit_mm_per_prompt": ((None, {}), "models take text only"),
    "mm_processor_kwargs": ((None,), "models take text only"),
    "allowed_local_media_path": (("",), "models take text only"),
    "guided_decoding_backend": ((None, "auto"), "the back end is fixed"),
    "attention_backend": ((None,), "it is chosen by the device"),
}
"""vLLM's parameters that Quire has only one value for: the values that say so, and what to do instead."""


def canonical(given: Mapping[str, Any]) -> dict[str, Any]:
    """Field to value of what was given under any known name; raises ConfigError. None means the default."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        field = VLLM_ALIASES.get(name) or ALIASES.get(name) or name
        if field not in EngineConfig.model_fields:
            _check_foreign(name, value)
        elif value is not None:
            if field in fields:
                raise ConfigError(f"{field} is given twice, once as {name}; leave one out")
            in_gib = field in IN_GIB and isinstance(value, int | float) and not isinstance(value, bool)
            fields[field] = f"{value:g}Gi" if in_gib else value
    return fields


def _check_foreign(name: str, value: object) -> None:
    if name in NO_EFFECT:
        _log.info("%s=%r has no effect: %s", name, value, NO_EFFECT[name])
        return
    if name not in ONLY:
        known = [*EngineConfig.model_fields, *VLLM_ALIASES, *ALIASES, *ONLY, *NO_EFFECT]
        near = difflib.get_close_matches(name, known, 1)
        raise ConfigError(f"there is no engine argument {name}" + (f"; did you mean {near[0]}?" if near else ""))
    values, why = ONLY[name]
    if not any(value == one and type(value) is type(one) for one in values):
        only = " or ".join(repr(one) for one in values)
        raise ConfigError(f"{name} can only be {only} here, got {value!r}: {why}")


if TYPE_CHECKING:

    class _Fields:
        """The fields of EngineConfig; made below, where a type checker cannot see them."""

        def __init__(self, **fields: Any) -> None: ...
        def __getattr__(self, name: str) -> Any: ...

else:
    _Fields = dataclasses.make_dataclass(
        "_Fields",
        [
            (name, field.annotation, dataclasses.field(default=field.default))
            for name, field in EngineConfig.model_fields.items()
        ],
    )


class EngineArgs(_Fields):
    """Arguments of an engine, for `LLM.from_engine_args` and `AsyncLLMEngine.from_engine_args`.

    Every field of `EngineConfig` (docs/configuration.md), `max_seq_len` for `max_model_len`, and vLLM's names of others. A
    dataclass: `dataclasses.asdict` gives keywords of `LLM`. Fields may be set until an engine is made of them. Raises
    ConfigError for a name that is not known and a value that cannot be honoured; bounds are checked by `create_engine_config`.
    """

    def __init__(self, model: Any = None, **given: Any) -> None:
        speak_up()
        fields = canonical({"model": model, **given})
        super().__init__(**{name: str(value) if name == "model" else value for name, value in fields.items()})

    def create_engine_config(self) -> EngineConfig:
        """The checked configuration; raises ConfigError that names the field, the value and the bound."""
        values = {name: getattr(self, name) for name in EngineConfig.model_fields}
        given = {name: value for name, value in values.items() if value != EngineConfig.model_fields[name].default}
        return load(EngineConfig, flags=canonical(given), environ={})

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Give a parser a flag for every field; `from_cli_args` reads them."""
        group = parser.add_argument_group("engine")
        for name in EngineConfig.model_fields:
            help_text = description(EngineConfig, name).replace("%", "%%")
            flags, is_bool = flag_names(name), kind_of(EngineConfig, name) == "bool"
            if is_bool:
                group.add_argument(
                    *flags, dest=name, default=None, action=argparse.BooleanOptionalAction, help=help_text
                )
            else:
                group.add_argument(*flags, dest=name, default=None, help=help_text)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """Arguments from what such a parser read; what else it holds is left out."""
        given = {name: value for name, value in vars(args).items() if name in EngineConfig.model_fields}
        for name in IN_GIB & given.keys():
            if (text := str(given[name])).replace(".", "", 1).isdecimal():
                given[name] = float(text)
        return cls(**given)


AsyncEngineArgs = EngineArgs
"""vLLM's second name; there is one set of arguments here."""
