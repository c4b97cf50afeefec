"""The fields: each written once with type, bound, default, unit and meaning."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from quire.errors import ConfigError

DEFAULT_MODEL = "smollm2"

Device = Literal["auto", "cpu", "cuda"]
DTYPE_ALIASES = {"half": "float16", "float": "float32"}


def _dtype(name: object) -> object:
    return DTYPE_ALIASES.get(name, name) if isinstance(name, str) else name


DType = Annotated[Literal["auto", "float32", "bfloat16", "float16"], BeforeValidator(_dtype)]

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
SIZE_BOUND = "a size such as 512Mi or 4Gi"


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

    # A process builds the validators of the configuration that it reads, not of both.
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), defer_build=True)

    model: str = Field(
        DEFAULT_MODEL,
        min_length=1,
        description="a Hugging Face folder, a .gguf file, a hub id (org/name), or a bundled name such as smollm2",
    )
    tokenizer: str | None = Field(None, description="folder or hub id of the tokenizer; default: the model's own")
    revision: str = Field("main", min_length=1, description="git revision of a hub model")
    tokenizer_revision: str | None = Field(
        None,
        min_length=1,
        description="git revision of the tokenizer; default: the model's for its own, main for a separate one",
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description="sampling parameters that requests do not set: auto takes them from the model's generation_config.json, none "
        "leaves it out, a file or folder replaces it",
    )
    model_impl: Literal["auto", "native", "transformers"] = Field(
        "auto", description="whose code computes the model; auto takes transformers where there is no native one"
    )
    pooling: Literal["auto", "none", "last", "mean", "cls"] = Field(
        "auto",
        description="the model makes vectors of prompts, of the hidden state of the last token, the mean over all or the first one; auto: as its "
        "files say (sentence-transformers), else an encoder takes cls and a decoder generates text; none: it generates",
    )
    trust_remote_code: bool = Field(
        False, description="run Python code that comes with a model of no known architecture; read it before"
    )
    device: Device = Field(
        "auto", description="where the model runs; auto takes CUDA where there is a GPU, else the CPU"
    )
    dtype: DType = Field(
        "auto",
        description="type of weights and activations; auto follows checkpoint and device, any other expands a quantised file",
    )
    quantization: Literal["auto", "none", "int8", "int4"] = Field(
        "auto",
        description="how a CPU holds the weights: auto as the files have them, none expands a quantised file, int8 and int4 quantise "
        "the weights of a Hugging Face folder as they are loaded",
    )
    packed_cache: str = Field(
        "auto",
        min_length=1,
        description="folder where the weights that --quantization makes are kept for later starts; auto: $QUIRE_CACHE_DIR/packed, for models "
        "of 64 MiB and more; none: each start makes them",
    )
    packed_cache_size: Size = Field(
        "16Gi", description="of all weights in that folder; beyond it those that were used the longest ago are removed"
    )
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="type of the KV cache; auto is dtype, and 16 bits beside quantised weights where dtype is auto "
        "too (float16 if the checkpoint is, else bfloat16)",
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
    long_prefill_token_threshold: int | None = Field(
        None,
        ge=0,
        description="tokens of prompts in a step at most while other sequences decode, so that their tokens keep coming; 0 is no limit; "
        "default: 64 where the CPU plan computes, else 256",
    )
    tensor_parallel_size: int = Field(1, ge=1, le=1, description="GPUs that share each layer; only 1 for now")
    pipeline_parallel_size: int = Field(1, ge=1, le=1, description="groups of layers on different GPUs; only 1 for now")
    deterministic: bool | None = Field(
        None,
        description="a greedy request gets the same bits whatever else runs; default: yes where the CPU plan computes the model (native "
        "models, in every type), at no cost; true: also check it at the start, and refuse to start where it "
        "does not hold; false: promise nothing",
    )
    logits_processors: tuple[str, ...] = Field(
        (), description="entry points of quire.logits_processors that requests pass through (repeat the flag)"
    )
    max_grammars: int = Field(
        64,
        ge=1,
        le=4096,
        description="grammars of structured outputs that live at once, each a process: those of requests, and the last ones for "
        "later requests; others wait",
    )
    max_compiling_grammars: int = Field(
        2, ge=1, le=64, description="grammars that are compiled at once; each takes a CPU while it is"
    )
    max_grammar_size: Size = Field(
        "256Ki", description="largest schema, expression or grammar, at most 1Mi; beyond it 400"
    )
    grammar_memory: Size | None = Field(
        None,
        description="memory of one grammar, beyond it 400, of which the memory plan leaves max_compiling_grammars + 1; default: its "
        "part of what all may hold together (half of what the plan leaves, 4Gi at most, in as many parts), 64Mi where "
        "there is room, at most 1Gi",
    )
    grammar_compile_timeout: float = Field(
        5.0, gt=0, le=600, description="seconds of CPU that compiling a grammar may take; beyond it 400"
    )
    grammar_token_timeout: float = Field(
        0.5,
        gt=0,
        le=60,
        description="seconds of CPU that a grammar may take for one token of one sequence; beyond it 400",
    )
    grammar_mean_token_time: float = Field(
        0.02, gt=0, le=60, description="seconds of CPU that it may take for a token on average; beyond it 400"
    )
    seed: int = Field(0, ge=0, description="seed of requests that bring none")
    cpu_threads: int | None = Field(
        None, ge=1, le=1024, description="threads of the CPU back end; default: the container's CPU quota"
    )

    @property
    def tokenizer_source(self) -> tuple[str, str]:
        """What holds the tokenizer, and at which revision; both as of a model."""
        own = self.revision if self.tokenizer is None else "main"
        return self.tokenizer or self.model, self.tokenizer_revision or own


class ServeConfig(EngineConfig):
    """What `quire serve` needs besides."""

    served_model_name: tuple[str, ...] = Field(
        (), description="names that requests may use (repeat the flag); default: the model's own"
    )
    host: str = Field("0.0.0.0", description="address to listen on")
    port: int = Field(8000, ge=1, le=65535, description="port to listen on")
    chat_template: str | None = Field(None, description="file with a jinja chat template; default: the model's own")
    tool_call_parser: Literal[
        "auto", "none", "glm4", "glm45", "hermes", "llama3", "mistral", "mistral-list", "qwen3-coder"
    ] = Field(
        "auto",
        description="the format of the model's calls of tools; auto takes it from the chat template, hermes where that knows no tools; none "
        "refuses tools",
    )
    reasoning_parser: Literal["auto", "none", "deepseek", "qwen3"] = Field(
        "auto",
        description="what of an answer is reasoning_content: auto is up to </think> where the chat template knows that mark and the prompt "
        "or the answer opens it; deepseek takes every answer to begin inside",
    )
    max_queue_size: int = Field(
        1024, ge=0, description="requests that may wait, each with all its prompts; beyond it 503 with Retry-After"
    )
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
    client_timeout: float = Field(
        60.0,
        gt=0,
        le=3600,
        description="seconds that a client may take to send the next part of its request, or to read what was sent; then it is cut",
    )
    filter: tuple[str, ...] = Field(
        (),
        description="entry points of quire.filters that prompts and answers pass through, as NAME or NAME=TEXT (repeat the flag); regex=FILE "
        "and llm-guard=FILE are there",
    )
    max_body_size: Size = Field("16Mi", description="largest accepted request body; beyond it 413")
    api_key: tuple[Annotated[str, MinLen(1)], ...] = Field(
        (), description="keys of which a request must bring one as bearer token (repeat the flag); default: none needed"
    )
    api_key_file: str | None = Field(
        None,
        min_length=1,
        description="file with a line for each key: name, hash, limits (`quire key new` makes one); read again when it changes",
    )
    jwt_keys: str | None = Field(
        None,
        min_length=1,
        description="JSON web tokens are good as keys (RS256, ES256, HS256): https address of a JWKS, or a file with a JWKS, a public key in "
        "PEM, or a secret; needs quire[jwt]",
    )
    jwt_audience: str | None = Field(None, min_length=1, description="audience that tokens must be for")
    jwt_issuer: str | None = Field(None, min_length=1, description="issuer that tokens must be of")
    jwt_leeway: float = Field(30.0, ge=0, le=600, description="seconds that the issuer's clock may differ")
    metrics_auth: bool = Field(False, description="/metrics needs a key too")
    requests_per_minute: int = Field(
        0,
        ge=0,
        description="requests that each key may make a minute, unless its line says otherwise; beyond it 429; 0 is no limit",
    )
    tokens_per_minute: int = Field(
        0,
        ge=0,
        description="tokens of prompts and answers that each key may use a minute, unless its line says otherwise; beyond it 429; 0 is "
        "no limit",
    )
    max_concurrent: int = Field(
        0,
        ge=0,
        description="requests of each key at once, unless its line says otherwise; beyond it 429; 0 is no limit",
    )
    ssl_certfile: str | None = Field(
        None,
        min_length=1,
        description="PEM file with the server's certificate and its chain: TLS; read again when it changes",
    )
    ssl_keyfile: str | None = Field(
        None, min_length=1, description="PEM file with the certificate's key; default: it is in --ssl-certfile"
    )
    ssl_ca_certs: str | None = Field(
        None, min_length=1, description="PEM file with authorities; clients need a certificate of one of them"
    )
    cors_allow_origin: tuple[str, ...] = Field(
        (), description="origins whose web pages may use the server, or * (repeat the flag); default: none"
    )
    web_page: bool = Field(True, description="a page at / to chat with the model; it is sent without a key")
    metric_namespace: str = Field(
        "quire", pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", description="prefix of all metric names"
    )
    metrics_compat: Literal["none", "vllm"] = Field(
        "none",
        description="show the metrics also under the names that dashboards and scaling rules of this engine read",
    )
    otlp_endpoint: str | None = Field(
        None,
        min_length=1,
        description="address where an OpenTelemetry collector takes traces over HTTP, as http://collector:4318/v1/traces; needs quire[otel]",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["text", "json"] = Field("text", description="log lines for people, or JSON objects")
    log_requests: bool = Field(False, description="log prompts and answers; else they are in no log line")

    def engine(self) -> EngineConfig:
        """The part that goes to the engine process."""
        return EngineConfig(**{name: getattr(self, name) for name in EngineConfig.model_fields})


NEVER_EMPTY = frozenset({"api_key"})
"""Fields that whoever sets must fill: an empty list of keys would open the server."""

ALIASES: dict[str, str] = {"max_seq_len": "max_model_len"}
"""Other names users know; accepted wherever the field is."""


def parse_bytes(text: str, *, flag: str) -> int:
    """`512Mi`, `4Gi`, `1G`, `1048576` to bytes; raises ConfigError that names the flag."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kMGT]i?|Ki)?", text.strip())
    if match is None or match[2] == "ki":
        raise ConfigError(f"{flag} must be {SIZE_BOUND}, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2] or ""])
