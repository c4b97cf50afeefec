"""`quire bench prefix` (W3): requests that begin with the same long prefix, in this process; then the same ones again."""

from __future__ import annotations

from quire.api.progress import progress
from quire.bench.offline import Offline
from quire.bench.report import Figure, Report, say
from quire.bench.workloads import shared_prefix
from quire.config import EngineConfig

FIGURES = (
    Figure("cold_wall_s", "seconds, nothing cached", digits=2),
    Figure("warm_wall_s", "seconds, the same again", digits=2),
    Figure("cold_generated_tokens_per_s", "generated tokens/s, nothing cached"),
    Figure("warm_generated_tokens_per_s", "generated tokens/s, the same again"),
    Figure("cold_hit_share", "prompt tokens found in the cache, %", 100),
    Figure("warm_hit_share", "the same again, %", 100),
)


def run(config: EngineConfig, *, requests: int, prefix: int, suffix: int, output_tokens: int, repeats: int) -> Report:
    """Measure; raises QuireError. Compare with `--no-enable-prefix-caching`."""
    say(f"loading {config.model}")
    offline = Offline.load(config)
    engine = offline.engine
    works = shared_prefix(offline.encode, requests, prefix=prefix, suffix=suffix, num_tokens=output_tokens)
    offline.warm_up()
    num_prompt = requests * (prefix + suffix)
    runs = []
    for number in range(repeats):
        engine.reset_prefix_cache()
        figures: dict[str, float] = {}
        for state in ("cold", "warm"):
            before = engine.stats.prefix_cache_hits
            with progress(requests, label=f"run {number + 1} of {repeats}, {state}") as tick:
                timeline = offline.run(works, tick=tick)
            figures |= {
                f"{state}_wall_s": timeline.wall_s,
                f"{state}_generated_tokens_per_s": timeline.num_generated / timeline.wall_s,
                f"{state}_hit_share": (engine.stats.prefix_cache_hits - before) / num_prompt,
            }
            shares = timeline.shares()
            figures |= {name: max(figures.get(name, 0.0), share) for name, share in shares.items()}
        runs.append(figures)
    return Report(
        benchmark="prefix",
        title=f"prefix: {requests} requests with a shared beginning",
        work={
            "requests": requests,
            "shared_tokens": prefix,
            "own_tokens": suffix,
            "output_tokens": output_tokens,
        },
        warm_up="2 short requests",
        engine=offline.facts(),
        runs=runs,
    )
