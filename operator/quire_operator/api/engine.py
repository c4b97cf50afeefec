"""`spec.engine`: one field per flag of `quire serve` that a user may set.

The mapping is mechanical: `maxNumSeqs` is `--max-num-seqs`; durations become seconds, everything else goes as it is. A
field that is absent is not passed, so the engine's own default holds. `tests/contract` compares names, choices, bounds
and the defaults told here with the engine's configuration.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from quire_operator.api.base import ApiModel, Duration, Share, Size, rule, rules

OPERATOR_OWNED_FLAGS = (
    "host",
    "port",
    "model",
    "served-model-name",
    "revision",
    "drain-timeout",
    "metric-namespace",
    "api-key",
    "metrics-auth",
    "ssl-certfile",
    "ssl-keyfile",
    "ssl-ca-certs",
)
"""Flags the operator sets from elsewhere in the resource, or whose change would cut the operator off from the pod."""

_OWNED = "|".join(OPERATOR_OWNED_FLAGS)


def _flag(text: str, default: str, **bounds: Any) -> Any:
    """An optional flag; `default` is what the engine does without it."""
    return Field(default=None, description=f"{text} Default: {default}.", **bounds)


class Engine(ApiModel):
    """Flags of the engine. A change of any of them makes a new revision and rolls the pods."""

    device: Literal["auto", "cpu", "cuda"] | None = _flag(
        "Where the model runs. auto takes CUDA where there is a GPU, else the CPU.", "auto"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = _flag(
        "Type of weights and activations. auto follows checkpoint and device, any other expands a quantised file.",
        "auto",
    )
    quantization: Literal["auto", "none", "int8", "int4"] | None = _flag(
        "How a CPU holds the weights. auto as the files have them, none expands a quantised file, int8 and int4 quantise the "
        "weights of a Hugging Face folder as they are loaded.",
        "auto",
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = _flag(
        "Type of the KV cache. auto is dtype, and 16 bits beside quantised weights where dtype is auto "
        "too (float16 if the checkpoint is, else bfloat16).",
        "auto",
    )
    tokenizer: str | None = _flag("Folder or hub id of the tokenizer.", "the model's own", min_length=1, max_length=512)
    tokenizer_revision: str | None = _flag(
        "Git revision of the tokenizer.",
        "the model's for its own, main for a separate one",
        min_length=1,
        max_length=256,
    )
    generation_config: str | None = _flag(
        "Sampling parameters that requests do not set. auto takes them from the model's generation_config.json, none leaves it "
        "out, a file or folder in the pod replaces it.",
        "auto",
        min_length=1,
        max_length=512,
    )
    max_model_len: int | None = _flag(
        "Tokens of prompt plus answer at most. Longer prompts are refused with 400.",
        "what the model was made for",
        ge=1,
        le=1 << 24,
    )
    max_num_seqs: int | None = _flag("Sequences in one step at most.", "64", ge=1, le=4096)
    max_num_batched_tokens: int | None = _flag(
        "Token budget of one step. Longer prompts are computed in chunks of it.", "512", ge=1, le=1 << 20
    )
    block_size: int | None = _flag("Token slots in one KV block.", "16", ge=1, le=256)
    num_blocks: int | None = _flag("KV blocks in the pool.", "what the memory allows", ge=1, le=(1 << 31) - 1)
    kv_cache_memory: Size | None = _flag(
        "Memory of the KV pool on a CPU, as 512Mi or 4Gi.", "from the container's memory limit"
    )
    gpu_memory_utilization: Share | None = _flag(
        'Share of the GPU\'s memory for weights, activations and KV pool together, above 0 and up to 1, as "0.90".',
        "0.90",
    )
    swap_space: Size | None = _flag(
        "Host memory for the KV blocks of preempted sequences, as 4Gi. Part of the container's memory limit.",
        "none, they are computed again",
    )
    enable_prefix_caching: bool | None = _flag("Reuse the KV blocks of prompts that begin alike.", "true")
    scheduler_policy: Literal["fcfs", "priority", "sjf"] | None = _flag(
        "Order of waiting requests: arrival, the requests' priority, or shortest prompt first (with ageing).", "fcfs"
    )
    long_prefill_token_threshold: int | None = _flag(
        "Tokens of prompts in a step at most while other sequences decode, so that their tokens keep coming. 0 is no limit.",
        "64 for native models on CPUs, else 256",
        ge=0,
        le=1 << 20,
    )
    tensor_parallel_size: int | None = _flag(
        "Ranks that share each layer. Where these times pipelineParallelSize are more than the GPUs of a pod, a replica is a unit of "
        "several pods, a leader and its workers. Engines of this version take only 1 and refuse to start with more.",
        "1",
        ge=1,
        le=64,
    )
    pipeline_parallel_size: int | None = _flag(
        "Groups of layers, each on ranks of its own. Engines of this version take only 1 and refuse to start with more.",
        "1",
        ge=1,
        le=64,
    )
    seed: int | None = _flag("Seed of requests that bring none.", "0", ge=0, le=(1 << 53) - 1)
    cpu_threads: int | None = _flag("Threads of the CPU back end.", "the container's CPU quota", ge=1, le=1024)
    chat_template: str | None = _flag(
        "Path, inside the pod, of a file with a jinja chat template. Mount it with spec.template.",
        "the model's own",
        min_length=1,
        max_length=512,
    )
    tool_call_parser: (
        Literal["auto", "none", "glm4", "glm45", "hermes", "llama3", "mistral", "mistral-list", "qwen3-coder"] | None
    ) = _flag("Format of the model's calls of tools. auto takes it from the chat template, none refuses tools.", "auto")
    reasoning_parser: Literal["auto", "none", "deepseek", "qwen3"] | None = _flag(
        "What of an answer is reasoning_content. auto is up to </think> where the chat template knows that mark.",
        "auto",
    )
    max_queue_size: int | None = _flag(
        "Requests that may wait. Beyond it 503 with Retry-After.", "1024", ge=0, le=1_000_000
    )
    queue_timeout: Duration | None = _flag("How long a request may wait before 503, as 30s or 5m.", "5m")
    load_timeout: Duration | None = _flag(
        "How long finding and loading the model may take before the engine gives up, as 10m or 1h. With spec.startupTimeout or "
        "spec.model.size it follows from these.",
        "30m",
    )
    liveness_timeout: Duration | None = _flag(
        "How long a working engine may show no sign of life before its pod is restarted, as 30s.", "30s"
    )
    max_body_size: Size | None = _flag("Largest accepted request body, as 16Mi. Beyond it 413.", "16Mi")
    metrics_compat: Literal["none", "vllm"] | None = _flag(
        "Show the metrics also under the names that dashboards and scaling rules of this engine read.", "none"
    )
    log_level: Literal["debug", "info", "warning", "error"] | None = _flag("Least level that is logged.", "info")
    extra_args: tuple[Annotated[str, Field(max_length=1024)], ...] = Field(
        default=(),
        max_length=64,
        json_schema_extra=rules(
            rule(
                "self.all(arg, arg.matches('^--[a-z][a-z0-9-]*(=.*)?$'))",
                "each of extraArgs must be one --flag or --flag=value of `quire serve`",
            ),
            rule(
                f"self.all(arg, !arg.matches('^--(?:{_OWNED})(=.*)?$'))",
                f"extraArgs must not set a flag that the operator sets itself: {', '.join(OPERATOR_OWNED_FLAGS)}",
            ),
        ),
        description=(
            "Further arguments of `quire serve`, one --flag or --flag=value each, passed last and hashed like the rest. "
            "At most 64. Default: none."
        ),
    )
