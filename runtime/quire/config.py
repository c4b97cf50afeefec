"""The configuration: one frozen tree, each field written once with type, bound, default, unit and meaning.

The command line, the `QUIRE_*` environment variables, the YAML file of `--config` and the operator's `spec.engine`
all map to these fields mechanically: `max_num_seqs` is `--max-num-seqs`, `QUIRE_MAX_NUM_SEQS`, `max_num_seqs:` and
`maxNumSeqs`. Order of precedence: flag, environment, file, default. Only `load` reads the outside world.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from quire.errors import ConfigError

DEFAULT_MODEL = "smollm2"

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


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
    trust_remote_code: bool = Field(False, description="run Python code that comes with a model; off, and no model needs it")
    device: Device = Field("auto", description="where the model runs; auto takes CUDA where there is a GPU, else the CPU")
    dtype: DType = Field("auto", description="type of weights and activations; auto follows checkpoint and device")
    quantization: Literal["gguf"] | None = Field(
        None, description="weight quantisation; gguf files are recognised by themselves"
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="type of the KV cache; auto is dtype"
    )
    max_model_len: int | None = Field(
        None, ge=1, description="tokens of prompt plus answer at most; default: what the model was made for"
    )
    max_num_seqs: int = Field(64, ge=1, le=4096, description="sequences in one step at most")
    max_num_batched_tokens: int = Field(
        2048, ge=1, le=1 << 20, description="token budget of one step; long prompts are computed in chunks of it"
    )
    block_size: int = Field(16, ge=1, le=256, description="token slots in one KV block")
    num_blocks: int | None = Field(
        None, ge=1, description="KV blocks in the pool; default: what the memory allows (kv_cache_memory, gpu_memory_utilization)"
    )
    kv_cache_memory: str | None = Field(
        None, description="memory of the KV pool on a CPU, as 512Mi or 4Gi; default: from the container's memory limit"
    )
    gpu_memory_utilization: float = Field(
        0.90, gt=0.0, le=1.0, description="share of the GPU's memory for weights, activations and KV pool together"
    )
    swap_space: str = Field("0", description="host memory for preempted requests, as 4Gi; 0 recomputes instead")
    enable_prefix_caching: bool = Field(True, description="reuse the KV blocks of prompts that begin alike")
    scheduler_policy: Literal["fcfs"] = Field("fcfs", description="order of waiting requests")
    enforce_eager: bool = Field(False, description="never capture CUDA graphs (no effect on a CPU)")
    tensor_parallel_size: int = Field(1, ge=1, le=1, description="GPUs that share each layer; only 1 for now")
    pipeline_parallel_size: int = Field(1, ge=1, le=1, description="groups of layers on different GPUs; only 1 for now")
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
        60.0, ge=0, description="seconds that running requests may go on after SIGTERM; the pod's grace period must be longer"
    )
    max_body_size: str = Field("16Mi", description="largest accepted request body; beyond it 413")
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
    units = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
    number = text.rstrip("kKMGTi")
    unit = text[len(number) :]
    try:
        value = float(number)
        factor = units[unit]
    except (ValueError, KeyError):
        raise ConfigError(f"{flag} must be a size such as 512Mi or 4Gi, got {text!r}") from None
    if value < 0:
        raise ConfigError(f"{flag} must not be negative, got {text!r}")
    return int(value * factor)


def load(
    cls: type[EngineConfig],
    *,
    flags: dict[str, Any],
    environ: dict[str, str],
    file: Path | None = None,
) -> EngineConfig:
    """Merge file, environment and flags over the defaults.

    flags: only those given. Raises ConfigError that names the flag, the value, the bound and where the value came from.
    """
    raise NotImplementedError
