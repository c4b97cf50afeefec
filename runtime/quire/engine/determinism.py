"""Batch invariance, asked of the running engine: does a greedy request get the same bits alone and in a crowd?

Where the CPU plan computes the model nothing has to be switched on for it: an output of its products, norms and attention is summed
up in one order for any number of rows, chunks and threads (`quire_kernels.decoder`, `quire_kernels.ops`), and the sampler works row
by row. So it is promised there by default (`Executor.batch_invariant`). Torch modules multiply with libraries that
choose by the number of rows. `--deterministic` asks for it wherever it is not promised, and beyond promises: it checks on
this machine with this model, and refuses to start where it does not hold.
"""

from __future__ import annotations

import torch

from quire.engine.core import EngineCore
from quire.engine.pooling.core import PoolingCore
from quire.engine.sampling.logprobs import USUAL
from quire.errors import ConfigError
from quire.request import AddRequest, PoolRequest, SamplingParams, TokenLogprobs

_TOKENS = 6


def difference(core: EngineCore, vocab_size: int) -> str | None:
    """What a crowd changed, in words; None where every log probability, or every number of a vector, is the same bit for bit. The
    core must be idle; its prefix cache is empty afterwards."""
    length = max(min(core.scheduler.max_model_len - _TOKENS, 24) - 1, 1)
    alone = _answer(core, vocab_size, length, [])
    crowd = _answer(core, vocab_size, length, [1, 3, 2 * length // 3, length, 1, 2, length])
    if alone == crowd:
        return None
    for place, (one, other) in enumerate(zip(alone, crowd, strict=True)):
        if isinstance(one, bytes) or isinstance(other, bytes):
            return "a probe has another vector in a batch than alone"
        if one != other:
            return f"token {place} of a probe has log probability {one.logprobs[0]!r} alone and {other.logprobs[0]!r} in a batch"
    raise AssertionError("unequal lists differ somewhere")


def require(core: EngineCore, device: torch.device, vocab_size: int) -> None:
    """Raises ConfigError where batch invariance does not hold; see `difference`."""
    if device.type != "cpu":
        raise ConfigError(
            f"--deterministic: products on {device.type} depend on the batch; use --device cpu, or drop the flag"
        )
    if (found := difference(core, vocab_size)) is not None:
        raise ConfigError(
            f"--deterministic: answers depend on the batch here ({found}); use a model that the CPU plan computes, or drop the flag"
        )


def _answer(core: EngineCore, vocab: int, length: int, others: list[int]) -> list[TokenLogprobs | bytes]:
    """Log probabilities of the probe's answer, or its vector; prompts of `others` tokens arrive one a step, the probe after the second."""
    core.scheduler.forget()
    params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, ignore_eos=True, logprobs=USUAL)
    arrivals = [(f"probe-crowd-{i}", [(7 * i + 3 * t + 1) % vocab for t in range(n)]) for i, n in enumerate(others)]
    arrivals.insert(min(2, len(arrivals)), ("probe", [(5 * t + 2) % vocab for t in range(length)]))
    told: list[TokenLogprobs | bytes] = []
    while arrivals or core.has_work:
        if arrivals:
            name, prompt = arrivals.pop(0)
            if isinstance(core, PoolingCore):
                core.pool(PoolRequest(request_id=name, prompt_token_ids=prompt, arrival_s=0.0))
            else:
                core.add(AddRequest(request_id=name, prompt_token_ids=prompt, params=params, arrival_s=0.0))
        for delta in core.step().deltas:
            if delta.request_id == "probe":
                told += delta.logprobs or ()
                told += () if delta.vector is None else (delta.vector,)
    core.scheduler.forget()
    return told
