"""`quire bench latency` (W2): one request at a time, in this process: time to the first token, then tokens one after another."""

from __future__ import annotations

from quire.api.progress import progress
from quire.bench.offline import Offline
from quire.bench.report import Figure, Report, say
from quire.bench.stats import gaps, percentile
from quire.bench.workloads import single
from quire.config import EngineConfig

FIGURES = (
    Figure("ttft_s", "time to first token, ms", 1e3),
    Figure("prompt_tokens_per_s", "prompt tokens/s"),
    Figure("decode_tokens_per_s", "decoded tokens/s"),
    Figure("itl_p50_s", "between tokens, p50, ms", 1e3, 2),
    Figure("itl_p95_s", "between tokens, p95, ms", 1e3, 2),
)


def run(config: EngineConfig, *, prompt_tokens: int, output_tokens: int, repeats: int) -> Report:
    """Measure; raises QuireError. output_tokens: 2 at least. Each run has a prompt of its own."""
    say(f"loading {config.model}")
    offline = Offline.load(config)
    offline.warm_up([single(offline.encode, prompt_tokens, min(output_tokens, 8), repeat=-1)])
    runs = []
    with progress(repeats, label="runs") as tick:
        for number in range(repeats):
            timeline = offline.run([single(offline.encode, prompt_tokens, output_tokens, repeat=number)], tick=tick)
            [stamps] = timeline.stamps
            between = gaps(stamps)
            runs.append(
                {
                    "ttft_s": stamps[0],
                    "prompt_tokens_per_s": prompt_tokens / stamps[0],
                    "decode_tokens_per_s": len(between) / (stamps[-1] - stamps[0]),
                    "itl_p50_s": percentile(between, 0.50),
                    "itl_p95_s": percentile(between, 0.95),
                    **timeline.shares(),
                }
            )
    return Report(
        benchmark="latency",
        title="latency: one request at a time",
        work={"prompt_tokens": prompt_tokens, "output_tokens": output_tokens},
        warm_up="3 short requests, one with a prompt of full length",
        engine=offline.facts(),
        runs=runs,
    )
