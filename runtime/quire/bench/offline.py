"""An engine in this process under a workload, with the time of every token. What W1, W2 and W3 have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quire.api.llm_engine import LLMEngine
from quire.bench.processes import Noise
from quire.bench.workloads import Encode, Work, warm_up
from quire.config import EngineConfig
from quire.errors import RequestError
from quire.request import RequestOutputKind, SamplingParams


@dataclass(frozen=True)
class Timeline:
    """Seconds from when everything was handed over: of each request's tokens, and of the end. noise: what else ran."""

    stamps: list[list[float]]
    wall_s: float
    noise: Noise

    @property
    def num_generated(self) -> int:
        return sum(map(len, self.stamps))

    def shares(self) -> dict[str, float]:
        """For the figures of a run."""
        return {"foreign": self.noise.foreign, "stolen": self.noise.stolen}


@dataclass
class Offline:
    """A loaded engine. load_s: seconds of loading, imports not included."""

    engine: LLMEngine
    load_s: float
    _count: int = field(default=0)

    @classmethod
    def load(cls, config: EngineConfig) -> Offline:
        """Raises ConfigError or ModelError."""
        began = time.perf_counter()
        return cls(LLMEngine(config), time.perf_counter() - began)

    @property
    def encode(self) -> Encode:
        """Text to token ids, nothing added."""
        tokenizer = self.engine.tokenizer
        return lambda text: tokenizer.encode(text, add_special_tokens=False)

    def facts(self) -> dict[str, str]:
        """The configuration as it came out, for the report."""
        config = self.engine.config
        own = {name: str(getattr(config, name)) for name in ("model", "max_num_seqs", "max_num_batched_tokens")}
        return own | {"enable_prefix_caching": str(config.enable_prefix_caching).lower()} | self.engine.ready.info

    def warm_up(self, more: Sequence[Work] = ()) -> None:
        """Make everything initialise itself, then forget the prompts."""
        self.run([*warm_up(self.encode), *more])
        self.engine.reset_prefix_cache()

    def run(self, works: Sequence[Work], *, tick: Callable[[], None] = lambda: None) -> Timeline:
        """Hand all of it over at once and step until it is done. tick: called for each request that ends.

        Raises RequestError where a request cannot be served or comes back short.
        """
        engine, stamps = self.engine, [list[float]() for _ in works]
        with Noise() as noise:
            began = time.perf_counter()
            places: dict[str, int] = {}
            for index, work in enumerate(works):
                params = SamplingParams(
                    temperature=0.0, max_tokens=work.num_tokens, ignore_eos=True, output_kind=RequestOutputKind.DELTA
                )
                name = f"bench-{self._count}-{index}"
                engine.add_request(name, {"prompt_token_ids": work.prompt}, params)
                places[name] = index
            while engine.has_unfinished_requests():
                for output in engine.step():
                    now = time.perf_counter() - began
                    stamps[places[output.request_id]] += [now] * len(output.outputs[0].token_ids)
                    if output.finished:
                        tick()
            wall_s = time.perf_counter() - began
        self._count += 1
        _check(works, [len(one) for one in stamps])
        return Timeline(stamps, wall_s, noise)


def _check(works: Sequence[Work], generated: Sequence[int]) -> None:
    for index, (work, count) in enumerate(zip(works, generated, strict=True)):
        if count != work.num_tokens:
            raise RequestError(
                f"request {index} came back with {count} tokens instead of {work.num_tokens}: the figures would mean nothing; "
                "give a --max-model-len or shorter work that fits"
            )
