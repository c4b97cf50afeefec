"""`quire bench throughput` (W1): many requests of mixed lengths, all there from the start, in this process."""

from __future__ import annotations

from quire.api.progress import progress
from quire.bench.offline import Offline
from quire.bench.report import Figure, Report, say
from quire.bench.workloads import Span, mixed
from quire.config import EngineConfig

FIGURES = (
    Figure("generated_tokens_per_s", "generated tokens/s"),
    Figure("total_tokens_per_s", "tokens/s, prompts included"),
    Figure("requests_per_s", "requests/s", digits=2),
    Figure("wall_s", "seconds for all", digits=2),
    Figure("load_s", "seconds to load", digits=2),
)


def run(config: EngineConfig, *, requests: int, prompt_tokens: Span, output_tokens: Span, repeats: int) -> Report:
    """Measure; raises QuireError. The prefix cache is emptied before each run."""
    say(f"loading {config.model}")
    offline = Offline.load(config)
    works = mixed(offline.encode, requests, prompt_tokens, output_tokens)
    offline.warm_up()
    num_prompt = sum(len(work.prompt) for work in works)
    runs = []
    for number in range(repeats):
        offline.engine.reset_prefix_cache()
        with progress(requests, label=f"run {number + 1} of {repeats}") as tick:
            timeline = offline.run(works, tick=tick)
        generated = timeline.num_generated
        runs.append(
            {
                "generated_tokens_per_s": generated / timeline.wall_s,
                "total_tokens_per_s": (generated + num_prompt) / timeline.wall_s,
                "requests_per_s": requests / timeline.wall_s,
                "wall_s": timeline.wall_s,
                "load_s": offline.load_s,
                **timeline.shares(),
            }
        )
    return Report(
        benchmark="throughput",
        title=f"throughput: {requests} requests at once",
        work={
            "requests": requests,
            "prompt_tokens": f"{prompt_tokens} ({num_prompt} in all)",
            "output_tokens": f"{output_tokens} ({sum(work.num_tokens for work in works)} in all)",
        },
        warm_up="2 short requests",
        engine=offline.facts(),
        runs=runs,
    )
