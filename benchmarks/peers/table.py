"""Results as rows: what each lane reached, and how Quire's lanes compare with it, round by round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.bench.report import Figure
from quire.bench.stats import medians, paired_ratio

Rounds = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class Sheet:
    """A work: its title, figures of which the first is compared, and whether more of that one is better."""

    title: str
    figures: tuple[Figure, ...]
    more_is_better: bool = True


_LATENCIES = (
    Figure("ttft_p50_s", "TTFT p50 ms", 1e3, 0),
    Figure("ttft_p95_s", "TTFT p95 ms", 1e3, 0),
    Figure("itl_p50_s", "ITL p50 ms", 1e3, 1),
    Figure("itl_p95_s", "ITL p95 ms", 1e3, 1),
)
_MEMORY = Figure("pss_bytes", "PSS MB", 1e-6, 0)
_RATE = Figure("generated_tokens_per_s", "generated tokens/s")
SHEETS: dict[str, Sheet] = {
    "w2-inside": Sheet(
        "W2 in process: one request, 128 + 128 tokens",
        (Figure("decode_tokens_per_s", "decoded tokens/s"), Figure("prompt_tokens_per_s", "prompt tokens/s", 1, 0)),
    ),
    "w2": Sheet(
        "W2 over HTTP: one client, 128 + 128 tokens",
        (
            Figure("stream_tokens_per_s", "tokens/s of a stream"),
            Figure("ttft_p50_s", "TTFT ms", 1e3, 0),
            *_LATENCIES[2:],
            _MEMORY,
        ),
    ),
    "w1": Sheet("W1 over HTTP: 64 mixed requests at once", (_RATE, Figure("wall_s", "seconds"), _MEMORY)),
    "w3": Sheet(
        "W3 over HTTP: 32 requests, shared prefix of 1024 tokens",
        (Figure("wall_s", "seconds, nothing cached", 1, 2), Figure("again_wall_s", "seconds, again", 1, 2)),
        more_is_better=False,
    ),
    "w4": Sheet(
        "W4: 16 streaming clients",
        (Figure("requests_per_s", "requests/s", 1, 2), _RATE, *_LATENCIES, _MEMORY),
    ),
    "start": Sheet(
        "Start: process to first token over HTTP",
        (Figure("first_token_s", "seconds", 1, 2), Figure("ready_s", "seconds to ready", 1, 2), _MEMORY),
        more_is_better=False,
    ),
}


@dataclass(frozen=True)
class Rows:
    """A table: headings, and cells as text, of which the first names the lane."""

    title: str
    heads: list[str]
    cells: list[list[str]]


def advantage(ours: Rounds, theirs: Rounds, sheet: Sheet) -> float:
    """How many times better ours is, in the median over pairs of rounds: above 1 ours is faster."""
    name = sheet.figures[0].name
    pairs = min(len(ours), len(theirs))
    mine, other = ([run[name] for run in runs[:pairs]] for runs in (ours, theirs))
    return paired_ratio(mine, other) if sheet.more_is_better else paired_ratio(other, mine)


def tabulate(work: str, lanes: Mapping[str, Rounds]) -> Rows:
    """A row for each lane; behind its figures how each lane of Quire compares with it."""
    sheet = SHEETS[work]
    ours = [name for name in lanes if name.startswith("quire")]
    figures = [figure for figure in sheet.figures if any(figure.name in run for runs in lanes.values() for run in runs)]
    cells = []
    for name, runs in lanes.items():
        middle = medians(runs)
        row = [name, *(_number(middle.get(figure.name), figure) for figure in figures)]
        for mine in ours:
            row.append("" if mine == name else f"{advantage(lanes[mine], runs, sheet):.2f}")
        cells.append(row)
    spread = max((_spread(runs, sheet.figures[0].name) for runs in lanes.values()), default=0.0)
    title = sheet.title + (f" (rounds differ by up to {spread:.0%})" if spread else "")
    return Rows(title, ["", *(figure.title for figure in figures), *(f"{mine} ×" for mine in ours)], cells)


def _spread(runs: Rounds, name: str) -> float:
    values = [run[name] for run in runs]
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def _number(value: float | None, figure: Figure) -> str:
    return "" if value is None else f"{value * figure.scale:,.{figure.digits}f}"


def markdown(rows: Rows) -> str:
    """The table as Markdown."""
    lines = [
        f"### {rows.title}",
        "",
        "| " + " | ".join(rows.heads) + " |",
        "|---" + "|---:" * (len(rows.heads) - 1) + "|",
    ]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows.cells)]) + "\n"
