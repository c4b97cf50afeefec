"""The configuration: one frozen tree, each field written once with type, bound, default, unit and meaning.

The command line, the `QUIRE_*` environment variables, the YAML file of `--config` and the operator's `spec.engine`
all map to these fields mechanically: `max_num_seqs` is `--max-num-seqs`, `QUIRE_MAX_NUM_SEQS`, `max_num_seqs:` and
`maxNumSeqs`. Order of precedence: flag, environment, file, default. Only `load` reads the outside world.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from quire.errors import ConfigError

DEFAULT_MODEL = "smollm2"

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE_BOUND = "a size such as 512Mi or 4Gi"


def _checked_size(text: str) -> str:
    try:
        parse_bytes(text, flag="size")
    except ConfigError as exc:
        raise ValueError(str(exc)) from None
    return text


Size = Annotated[str, AfterValidator(_checked_size)]
"""Bytes with a unit; `parse_bytes` reads it."""


class EngineConfig(BaseModel):
    """What the engine needs to load a model and run steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        description="a Hugging Face folder, a .gguf file, a hub id (org/name), or a bundled name such as smollm2",
    )
    tokenizer: str | None = Field(None, description="folder or hub id of the tokenizer; default: the model's own")
    revision: str = Field("main", min_length=1, description="git revision of a hub model")
    model_impl: Literal["auto", "native", "transformers"] = Field(
        "auto", description="whose code computes the model; auto takes transformers where there is no native one"
    )
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with a model of no known architecture; read it before"
    )
    device: Device = Field(
        "auto", description="where the model runs; auto takes CUDA where there is a GPU, else the CPU"
    )
    dtype: DType = Field("auto", description="type of weights and activations; auto follows checkpoint and device")
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="type of the KV cache; auto is dtype"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="tokens of prompt plus answer at most; default: what the model was made for"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences in one step at most")
    max_num_batched_tokens: int = Field(
        # A step must stay short: others wait for it, and the heartbeat of liveness with them (2048 tokens take 5 to 9 s on 2 CPUs).
        512,
        ge=1,
        le=1 << 20,
        description="token budget of one step; long prompts are computed in chunks of it",
    )
    block_size: int = Field(16, ge=1, le=256, description="token slots in one KV block")
    num_blocks: int | None = Field(
        None,
        ge=1,
        description="KV blocks in the pool; default: what the memory allows (kv_cache_memory, gpu_memory_utilization)",
    )
    kv_cache_memory: Size | None = Field(
        None, description="memory of the KV pool on a CPU, as 512Mi or 4Gi; default: from the container's memory limit"
    )
    swap_space: Size | None = Field(
        None,
        description="host memory for the KV blocks of preempted sequences, as 4Gi; default: none, they are computed again",
    )
    gpu_memory_utilization: float = Field(
        0.90, gt=0.0, le=1.0, description="share of the GPU's memory for weights, activations and KV pool together"
    )
    enable_prefix_caching: bool = Field(True, description="reuse the KV blocks of prompts that begin alike")
    scheduler_policy: Literal["fcfs", "priority", "sjf"] = Field(
        "fcfs",
        description="order of waiting requests: arrival, the requests' priority, or shortest prompt first (with ageing)",
    )
    long_prefill_token_threshold: int = Field(
        # Measured on one core, SmolLM2-135M: a chunk of 256 takes 1.1 s and of 512 2.4 s, at the same cost a token; one of 128 costs
        # a fifth more a token.
        256,
        ge=0,
        description="tokens of one prompt in a step at most while other sequences decode, so that their tokens keep coming; 0 is no limit",
    )
    tensor_parallel_size: int = Field(1, ge=1, le=1, description="GPUs that share each layer; only 1 for now")
    pipeline_parallel_size: int = Field(1, ge=1, le=1, description="groups of layers on different GPUs; only 1 for now")
    deterministic: bool = Field(
        False,
        description="check at the start that a greedy request gets the same bits whatever else runs, and refuse to start where it "
        "does not; on a CPU this holds without the flag, at no cost",
    )
    logits_processors: tuple[str, ...] = Field(
        (), description="entry points of quire.logits_processors that requests pass through (repeat the flag)"
    )
    seed: int = Field(0, ge=0, description="seed of requests that bring none")
    cpu_threads: int | None = Field(
        None, ge=1, le=1024, description="threads of the CPU back end; default: the container's CPU quota"
    )


class ServeConfig(EngineConfig):
    """What `quire serve` needs besides."""

    served_model_name: tuple[str, ...] = Field(
        (), description="names that requests may use (repeat the flag); default: the model's own"
    )
    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    chat_template: str | None = Field(None, description="file with a jinja chat template; default: the model's own")
    max_queue_size: int = Field(1024, ge=0, description="requests that may wait; beyond it 503 with Retry-After")
    queue_timeout: float = Field(300.0, gt=0, description="seconds a request may wait before 503")
    drain_timeout: float = Field(
        60.0,
        ge=0,
        description="seconds that running requests may go on after SIGTERM; the pod's grace period must be longer",
    )
    load_timeout: float = Field(1800.0, gt=0, description="seconds that finding and loading the model may take")
    liveness_timeout: float = Field(
        30.0, gt=0, description="seconds without a sign of life from a working engine until /health/live fails"
    )
    max_body_size: Size = Field("16Mi", description="largest accepted request body; beyond it 413")
    api_key: tuple[str, ...] = Field(
        (), description="keys of which a request must bring one as bearer token (repeat the flag); default: none needed"
    )
    metric_namespace: str = Field(
        "quire", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", description="prefix of all metric names"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")

    def engine(self) -> EngineConfig:
        """The part that goes to the engine process."""
        return EngineConfig(**{name: getattr(self, name) for name in EngineConfig.model_fields})


ALIASES: dict[str, str] = {"max_seq_len": "max_model_len"}
"""Other names users know; accepted wherever the field is."""


def parse_bytes(text: str, *, flag: str) -> int:
    """`512Mi`, `4Gi`, `1G`, `1048576` to bytes; raises ConfigError that names the flag."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMGT]i?|Ki)?", text.strip())
    if match is None or match[2] == "ki":
        raise ConfigError(f"{flag} must be {_SIZE_BOUND}, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2] or ""])


Config = TypeVar("Config", bound=EngineConfig)


def load(
    cls: type[Config], *, flags: Mapping[str, Any], environ: Mapping[str, str], file: Path | None = None
) -> Config:
    """Merge file, environment and flags over the defaults.

    flags: field name to value, only those given; values may be strings as on a command line. Raises ConfigError that
    names the flag, the value, the bound and where the value came from.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source, origin in (
        (_from_file(cls, file) if file else {}, f"{{name}} in {file}"),
        (_from_environ(cls, environ), "{variable}"),
        (flags, "{flag}"),
    ):
        for name, value in source.items():
            field = cls.model_fields[name]
            values[name] = _shaped(value, field)
            origins[name] = origin.format(name=name, variable=variable_of(name), flag=flag_of(name))
    try:
        return cls(**values)
    except ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        name = str(error["loc"][0])
        raise ConfigError(f"{origins[name]} must be {bound_of(cls, name)}, got {values[name]!r}") from None


def flag_of(name: str) -> str:
    """`max_num_seqs` to `--max-num-seqs`."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """`max_num_seqs` to `QUIRE_MAX_NUM_SEQS`."""
    return "QUIRE_" + name.upper()


def kind_of(cls: type[EngineConfig], name: str) -> Literal["bool", "int", "float", "size", "choice", "text", "list"]:
    """What kind of value a field takes; `choice` has `choices_of`."""
    return _kind(cls.model_fields[name])


def choices_of(cls: type[EngineConfig], name: str) -> tuple[str, ...]:
    """The words a field of kind `choice` takes."""
    return tuple(map(str, get_args(_bare(cls.model_fields[name].annotation))))


def bound_of(cls: type[EngineConfig], name: str) -> str:
    """The values a field takes, in words that follow "must be"."""
    field = cls.model_fields[name]
    kind = _kind(field)
    limits = {type(entry): entry for entry in field.metadata}
    if kind == "bool":
        return "true or false"
    if kind == "size":
        return _SIZE_BOUND
    if kind == "choice":
        *most, last = choices_of(cls, name)
        return f"one of {', '.join(most)} or {last}" if most else last
    if kind in ("int", "float"):
        noun = "an integer" if kind == "int" else "a number"
        low = _limit(limits, Ge, "at least", "ge") or _limit(limits, Gt, "above", "gt")
        high = _limit(limits, Le, "at most", "le") or _limit(limits, Lt, "below", "lt")
        if Ge in limits and Le in limits:
            one = limits[Ge].ge == limits[Le].le
            noun, low, high = (
                ("", str(limits[Ge].ge), "") if one else (noun, f"between {limits[Ge].ge} and {limits[Le].le}", "")
            )
        return " ".join(filter(None, [noun, low, "and" if low and high else "", high]))
    if kind == "list":
        return "a list of texts"
    pattern = next((entry.pattern for entry in field.metadata if getattr(entry, "pattern", None)), None)
    return f"a text that matches {pattern}" if pattern else "a non-empty text" if MinLen in limits else "a text"


def _limit(limits: dict[type, Any], kind: type, words: str, attribute: str) -> str:
    return f"{words} {getattr(limits[kind], attribute)}" if kind in limits else ""


def _kind(field: FieldInfo) -> Literal["bool", "int", "float", "size", "choice", "text", "list"]:
    bare = _bare(field.annotation)
    if bare is bool:
        return "bool"
    if bare is int:
        return "int"
    if bare is float:
        return "float"
    if get_origin(bare) is Literal:
        return "choice"
    if get_origin(bare) is tuple:
        return "list"
    annotated = [*field.metadata, *(get_args(field.annotation)[0:1] if field.annotation is not str else ())]
    sized = any(isinstance(entry, AfterValidator) or get_origin(entry) is Annotated for entry in annotated)
    return "size" if sized else "text"


def _bare(annotation: Any) -> Any:
    """The type inside Annotated and `| None`."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    arguments = get_args(annotation)
    if type(None) in arguments:
        return _bare(next(argument for argument in arguments if argument is not type(None)))
    return annotation


def _shaped(value: Any, field: FieldInfo) -> Any:
    """A text from a command line, a variable or a file, in the shape pydantic expects."""
    kind = _kind(field)
    if kind == "list" and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind in ("text", "size") and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and field.default is None and value.lower() in ("", "none", "null"):
        return None
    return value


def _from_environ(cls: type[EngineConfig], environ: Mapping[str, str]) -> dict[str, str]:
    """Variables of this configuration; empty ones count as unset.

    Kubernetes gives containers `QUIRE_PORT=tcp://...` where a Service is called quire; such values are not meant for us.
    """
    names = {variable_of(name): name for name in cls.model_fields} | {variable_of(a): n for a, n in ALIASES.items()}
    return {
        name: environ[variable]
        for variable, name in names.items()
        if environ.get(variable) and not re.match(r"(tcp|udp|sctp)://", environ[variable])
    }


def _from_file(cls: type[EngineConfig], file: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise ConfigError(f"--config must be a readable YAML file, got {file}: {' '.join(str(exc).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {file} must hold a mapping of field to value, got {type(content).__name__}")
    values: dict[str, Any] = {}
    for key, value in content.items():
        spelled = str(key).replace("-", "_")
        name = ALIASES.get(spelled, spelled)
        if name not in cls.model_fields:
            near = difflib.get_close_matches(name, cls.model_fields, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"{key!r} in {file} is no field of the configuration{hint}")
        if value is not None:
            values[name] = tuple(value) if isinstance(value, list) else value
    return values
