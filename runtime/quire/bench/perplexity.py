"""`quire bench perplexity`: how well a model foretells a text, and so what is lost where its numbers are rounded.

The text's tokens x are cut into chunks of `context` tokens that know nothing of each other, nothing added. With P the model's
probability of a token after those before it in its chunk, in N places (all tokens but the first of each chunk),

    nll = -1/N * sum of ln P(x_i | chunk before i)        perplexity = exp(nll)

Probabilities are those the engine tells of prompts (`prompt_logprobs`). Two figures compare only for the same tokenizer, text
and context.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from quire.api.progress import progress
from quire.bench.offline import Offline
from quire.bench.report import Figure, Report, say
from quire.config import EngineConfig
from quire.errors import ConfigError, RequestError
from quire.request import SamplingParams

FIGURES = (
    Figure("perplexity", "perplexity", digits=4),
    Figure("nll", "negative log likelihood of a token, nats", digits=5),
    Figure("tokens", "tokens that count", digits=0),
    Figure("wall_s", "seconds", digits=2),
)
TEXT = "two chapters of The Time Machine (H. G. Wells, 1895)"
_FILE = "time_machine.txt"


def run(config: EngineConfig, *, text: Path | None, context: int) -> Report:
    """Measure; raises QuireError. text: a file in UTF-8, None for the one that is here. context: tokens of a chunk, 2 at least."""
    content = _read(text)
    say(f"loading {config.model}")
    offline = Offline.load(config)
    chunks = cut(offline.encode(content), context)
    longest = offline.engine.ready.max_model_len - 1
    if chunks and len(chunks[0]) > longest:
        raise ConfigError(f"--context {context} is more than the {longest} tokens of a prompt here; lower it")
    if not chunks:
        raise ConfigError(f"the text of {text} has fewer than 2 tokens; give a longer one")
    began = time.perf_counter()
    logprobs = judge(offline, chunks)
    nll = -math.fsum(logprobs) / len(logprobs)
    return Report(
        benchmark="perplexity",
        title="perplexity: how well a text is foretold",
        work={"text": str(text or TEXT), "context": context, "chunks": len(chunks)},
        warm_up="nothing, as time is not what counts",
        engine=offline.facts(),
        runs=[
            {
                "perplexity": math.exp(nll),
                "nll": nll,
                "tokens": len(logprobs),
                "wall_s": time.perf_counter() - began,
            }
        ],
    )


def cut(tokens: Sequence[int], context: int) -> list[list[int]]:
    """Chunks of `context` tokens and what is left over; a single token at the end foretells nothing and is dropped."""
    chunks = [list(tokens[start : start + context]) for start in range(0, len(tokens), context)]
    return [chunk for chunk in chunks if len(chunk) > 1]


def judge(offline: Offline, chunks: Sequence[list[int]]) -> list[float]:
    """The log probability, in nats, of every token of each chunk but its first."""
    engine, found = offline.engine, dict[str, list[float]]()
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    for index, chunk in enumerate(chunks):
        engine.add_request(f"perplexity-{index}", {"prompt_token_ids": chunk}, params)
    with progress(len(chunks), label="chunks") as tick:
        while engine.has_unfinished_requests():
            for output in engine.step():
                if not output.finished:
                    continue
                if (error := output.outputs[0].error) is not None:
                    raise RequestError(f"the engine could not go on: {error}", code="engine_error", status=500)
                chunk, told = chunks[int(output.request_id.rpartition("-")[2])], output.prompt_logprobs or []
                found[output.request_id] = [
                    entry[token].logprob
                    for token, entry in zip(chunk, told, strict=True)
                    if entry is not None  # the first has nothing before it
                ]
                tick()
    return [value for index in range(len(chunks)) for value in found[f"perplexity-{index}"]]


def _read(text: Path | None) -> str:
    if text is None:
        return resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8")
    try:
        return text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--text {text} cannot be read as UTF-8: {exc}") from exc
