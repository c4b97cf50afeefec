"""Bring an engine up: find the model, plan memory, load weights, allocate the KV pool, warm up. Each stage is timed.

The one place where configuration, host and model meet. Raises ConfigError or ModelError with the sentence the user sees.
"""

from __future__ import annotations

import logging
import time
from functools import partial

import torch

from quire import __version__
from quire.config import EngineConfig
from quire.engine import host
from quire.engine.advice import for_full_length, plan_or_advise, same_model
from quire.engine.block_ops import measure_swap
from quire.engine.budget import HostBudget
from quire.engine.core import EngineCore
from quire.engine.costs import PreemptionCosts
from quire.engine.determinism import require
from quire.engine.device import budget_of, check_length, device_of, name_of, use_threads
from quire.engine.device_usage import DeviceUsage
from quire.engine.grammar.client import Grammars
from quire.engine.grammar.gate import Gate
from quire.engine.grammar.limits import limits_of
from quire.engine.grammar.processor import GrammarProcessor
from quire.engine.grammar.protocol import Settings
from quire.engine.need import Need
from quire.engine.pooling.core import PoolingCore
from quire.engine.pooling.runner import PoolingRunner
from quire.engine.pooling.scheduler import PoolingScheduler
from quire.engine.pooling.startup import build_encoder
from quire.engine.runner import ModelRunner
from quire.engine.sampling import Sampler
from quire.engine.sampling.plugins import load_processors
from quire.engine.sampling.processors import default_processors
from quire.engine.scheduler import Scheduler
from quire.engine.stages import Stages
from quire.errors import ModelError
from quire.kvcache.manager import KVCacheManager
from quire.kvcache.swap import SwapSpace
from quire.models import calibration, encoder_description, loader, packed_cache
from quire.models.executor import Executor, ModelFacts, allocate_kv_pool
from quire.models.precision import Precision
from quire.models.source import ModelFiles, resolve, resolve_tokenizer
from quire.request import AddRequest, EngineReady, PoolingFacts, SamplingParams
from quire_kernels import ops

_log = logging.getLogger(__name__)


def build(config: EngineConfig, stages: Stages | None = None) -> tuple[EngineCore, EngineReady]:
    """A core that is ready for requests, and what to tell the server about it."""
    stages = stages or Stages()
    with stages.stage("config"):
        device = device_of(config)
        threads = use_threads(config)
        files = resolve(config.model, revision=config.revision, with_code=config.trust_remote_code)
        encoder = encoder_description.inspect(files, config.pooling)
    if encoder is not None:
        return build_encoder(config, encoder, device, threads, stages)
    with stages.stage("config"):
        model = loader.inspect(
            files,
            implementation=config.model_impl,
            trust_remote_code=config.trust_remote_code,
            pooling=config.pooling,
        )
        if model.notice:
            _log.warning("%s", model.notice)
        description = model.description
        builder = model.on(device)
        precision = builder.precision(config.dtype, config.quantization)
        kv_dtype = precision.kv_cache(config.kv_cache_dtype)
        quantization = description.quantization if precision.quantization == "stored" else precision.quantization
        check_length(config, description.max_model_len)
        need = Need(description, config, builder.footprint(precision), kv_dtype.itemsize)
        budgets = budget_of(device, config), None if device.type == "cpu" else HostBudget(host.memory())
        memory = plan_or_advise(need, same_model(builder, need), *budgets)
        _log.info("%s", memory)
        if memory.max_model_len < need.wanted_len:
            _announce_length(memory.max_model_len, need.wanted_len, for_full_length(need, *budgets))
    with stages.stage("weights"):
        tokens = partial(calibration_tokens, config, files, description.vocab_size)
        executor = builder.load(precision, memory.max_model_len, tokens, packed_cache.cache_of(config))
        host.trim()
        _log.info("weights are %s", _weights(precision, quantization))
    with stages.stage("kv_pool"):
        pool = allocate_kv_pool(description, memory.num_blocks, config.block_size, kv_dtype, device)
        swap_pool = None
        if memory.num_swap_blocks:
            swap_pool = allocate_kv_pool(
                description, memory.num_swap_blocks, config.block_size, kv_dtype, torch.device("cpu")
            )
        scheduler = (Scheduler if model.pooling is None else partial(PoolingScheduler, pooling=model.pooling))(
            KVCacheManager(memory.num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=memory.max_model_len,
            vocab_size=description.vocab_size,
            eos_token_ids=description.eos_token_ids,
            policy=config.scheduler_policy,
            long_prefill_token_threshold=executor.small_chunk
            if config.long_prefill_token_threshold is None
            else config.long_prefill_token_threshold,
            swap=SwapSpace(memory.num_swap_blocks) if swap_pool is not None else None,
            costs=PreemptionCosts(0.0 if swap_pool is None else measure_swap(pool, swap_pool)),
        )
        grammars = _grammars(config, description, memory.grammars)
        runner = ModelRunner(
            executor,
            pool,
            Sampler([*default_processors(), *load_processors(config.logits_processors), GrammarProcessor(grammars)]),
            swap_pool=swap_pool,
            block_size=config.block_size,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_blocks=-(-memory.max_model_len // config.block_size),
        )
        core = (
            PoolingCore(scheduler, PoolingRunner(runner), config)
            if isinstance(scheduler, PoolingScheduler)
            else EngineCore(scheduler, runner, config, Gate(grammars))
        )
        core.usage = DeviceUsage(device)
    with stages.stage("warmup"):
        facts = _warm_up(core)
    if config.deterministic:
        with stages.stage("determinism"):
            require(core, device, description.vocab_size)
    selection = ops.selection(device)
    ready = EngineReady(
        max_model_len=memory.max_model_len,
        num_blocks=memory.num_blocks,
        block_size=config.block_size,
        vocab_size=description.vocab_size,
        info={
            "version": __version__,
            "device": device.type,
            "dtype": name_of(precision.dtype),
            "model_impl": model.implementation,
            "executor": executor.name,
            "deterministic": str(config.deterministic or _promised(config, executor)).lower(),
            "quantization": quantization,
            "kv_cache_dtype": name_of(kv_dtype),
            "block_size": str(config.block_size),
            "num_blocks": str(memory.num_blocks),
            "num_swap_blocks": str(memory.num_swap_blocks),
            "max_model_len": str(memory.max_model_len),
            "cpu_threads": str(threads),
            "pooling": "none" if model.pooling is None else model.pooling.kind,
            "kernels": selection.kernels.NAME,
            "kernels_fallback": selection.reason,
        },
        startup_s=stages.total(),
        pooling=facts,
    )
    return core, ready


def _grammars(config: EngineConfig, facts: ModelFacts, memory: int) -> Grammars:
    """Makers of structured outputs; none of them runs yet."""
    tokenizer, tokenizer_revision = config.tokenizer_source
    return Grammars(
        Settings(
            tokenizer=tokenizer,
            revision=tokenizer_revision,
            vocab_size=facts.vocab_size,
            eos_token_ids=list(facts.eos_token_ids),
            limits=limits_of(config, memory),
        )
    )


def calibration_tokens(config: EngineConfig, files: ModelFiles, vocab_size: int) -> list[int]:
    """Of the text that tells what matters where weights get 4 bits; none where no tokenizer of this model makes any."""
    from quire.text import load_tokenizer  # takes a tenth of a second to import, which no other start needs

    try:
        path = resolve_tokenizer(config, files).path
        tokens = load_tokenizer(path).encode(calibration.text(), add_special_tokens=True)
        if max(tokens, default=0) >= vocab_size:
            raise ModelError(f"{path} has token ids up to {max(tokens)}, but the model only {vocab_size} embeddings")
    except ModelError as exc:
        _log.warning("int4 is made as if all inputs mattered alike, which costs quality: %s", exc)
        return []
    return tokens


def _weights(precision: Precision, quantization: str) -> str:
    """How they are held, in words."""
    dtype = name_of(precision.dtype)
    return dtype if quantization == "none" else f"{quantization}, and {dtype} where they are not quantised"


def _announce_length(length: int, model_len: int, remedy: str) -> None:
    _log.warning(
        "the model's length is %d tokens here, not the %d it was made for: the KV pool holds no more%s",
        length,
        model_len,
        f"; for all of it: {remedy}" if remedy else "",
    )


def _promised(config: EngineConfig, executor: Executor) -> bool:
    """Whether batch invariance holds without having been asked for."""
    return config.deterministic is None and executor.batch_invariant


def _warm_up(core: EngineCore) -> PoolingFacts | None:
    """One short request through the whole step, so that the first real one finds everything initialised; of a model that pools, what
    came of it."""
    if isinstance(core, PoolingCore):
        return core.warm_up()
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=2, ignore_eos=True, seed=0)
    length = min(8, core.scheduler.max_model_len - 2)
    if length < 1:
        return None
    core.add(AddRequest(request_id="warmup", prompt_token_ids=[0] * length, params=params, arrival_s=time.monotonic()))
    while core.has_work:
        for delta in core.step().deltas:
            if delta.error is not None:
                raise ModelError(f"the model does not compute: {delta.error}")
    core.scheduler.forget()
    return None
