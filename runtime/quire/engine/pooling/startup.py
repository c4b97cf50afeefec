"""Bring up the engine of an encoder: plan its memory, load its weights, warm up. There is no KV pool."""

from __future__ import annotations

import logging
from typing import Literal

import torch

from quire import __version__
from quire.config import EngineConfig
from quire.engine import host
from quire.engine.budget import Budget, mib
from quire.engine.core import EngineCore
from quire.engine.determinism import require
from quire.engine.device import budget_of, check_length, name_of
from quire.engine.device_usage import DeviceUsage
from quire.engine.pooling.core import PoolingCore
from quire.engine.pooling.whole import EncoderRunner, WholePromptScheduler
from quire.engine.stages import Stages
from quire.errors import ConfigError, ModelError
from quire.kvcache.manager import KVCacheManager
from quire.models.encoder import Encoder, footprint, precision
from quire.models.encoder_description import EncoderModel
from quire.models.executor import Footprint
from quire.request import EngineReady

_log = logging.getLogger(__name__)


def build_encoder(
    config: EngineConfig, model: EncoderModel, device: torch.device, threads: int, stages: Stages
) -> tuple[EngineCore, EngineReady]:
    """See `startup.build`."""
    description = model.description
    with stages.stage("config"):
        dtype = precision(model, device, dtype=config.dtype, quantization=config.quantization).dtype
        length = _length(config, model)
        _plan(config, footprint(description, dtype, length), budget_of(device, config))
    with stages.stage("weights"):
        encoder = Encoder(model, dtype, device)
        host.trim()
    with stages.stage("kv_pool"):
        scheduler = WholePromptScheduler(
            KVCacheManager(1, length, enable_prefix_caching=False),  # which nobody takes a block of
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=length,
            vocab_size=description.vocab_size,
            policy=config.scheduler_policy,
            pooling=model.pooling,
            num_types=description.num_types,
        )
        task: Literal["embed", "score"] = "embed" if description.head is None else "score"
        core = PoolingCore(scheduler, EncoderRunner(encoder), config, task)
        core.usage = DeviceUsage(device)
    with stages.stage("warmup"):
        facts = core.warm_up()
    if config.deterministic:
        with stages.stage("determinism"):
            require(core, device, description.vocab_size)
    ready = EngineReady(
        max_model_len=length,
        num_blocks=0,
        block_size=config.block_size,
        vocab_size=description.vocab_size,
        info={
            "version": __version__,
            "device": device.type,
            "dtype": name_of(dtype),
            "model_impl": "native",
            "executor": encoder.name,
            "deterministic": str(bool(config.deterministic)).lower(),
            "quantization": "none",
            "kv_cache_dtype": "none",
            "block_size": str(config.block_size),
            "num_blocks": "0",
            "num_swap_blocks": "0",
            "max_model_len": str(length),
            "cpu_threads": str(threads),
            "pooling": model.pooling.kind,
            "kernels": "torch",
            "kernels_fallback": "",
        },
        startup_s=stages.total(),
        pooling=facts,
    )
    return core, ready


def _length(config: EngineConfig, model: EncoderModel) -> int:
    """Tokens of a prompt at most: all of them are computed in one step. Raises ConfigError."""
    if config.model_impl == "transformers":
        raise ConfigError("--model-impl transformers: encoders are native only; leave it out")
    check_length(config, model.description.max_positions)
    length = config.max_model_len or model.description.max_model_len
    if length > config.max_num_batched_tokens:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens} is less than the model's length of {length}, and an encoder "
            f"computes a prompt in one step; raise it to {length}, or say --max-model-len {config.max_num_batched_tokens}"
        )
    return length


def _plan(config: EngineConfig, needed: Footprint, budget: Budget) -> None:
    """Say what will be taken; raises ModelError where it is more than there is."""
    activations = needed.activations_per_token * config.max_num_batched_tokens
    total = needed.weights + max(activations, needed.loading)
    words = f"weights {mib(needed.weights)} + activations {mib(activations)}"
    if total > budget.usable:
        more = budget.more(total - budget.usable)
        raise ModelError(
            f"{config.model} does not fit the memory: {words} = {mib(total)} are more than {budget.words}; "
            + (f"{more}, or take a smaller model" if more else "take a smaller model")
        )
    _log.info("memory plan: %s = %s of %s available, no KV pool", words, mib(total), mib(budget.available))
