"""What a benchmark found: the runs, their medians, and everything needed to judge them. A table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from quire.bench.machine import environment, machine, versions
from quire.bench.stats import medians
from quire.errors import ConfigError

NOISY = 0.05
"""Beyond this share of CPU time taken by others a run is not to be trusted."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A column of numbers: `name` in JSON, `title` for people, value times `scale` with `digits` behind the point."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 1


@dataclass(frozen=True)
class Report:
    """work: its sizes. warm_up: what ran before the clock. engine: its configuration as it came out. runs: figures of each."""

    benchmark: str
    title: str
    work: dict[str, Any]
    warm_up: str
    engine: dict[str, str]
    runs: list[dict[str, float]]
    notes: list[str] = field(default_factory=list)
    machine: dict[str, Any] = field(default_factory=machine)
    versions: dict[str, str] = field(default_factory=versions)
    environment: dict[str, str] = field(default_factory=environment)
    ended_at: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "repeats": len(self.runs), "median": medians(self.runs)}


def rows(runs: Sequence[Mapping[str, float]], figures: Sequence[Figure]) -> list[list[str]]:
    """A row for each figure: its title, the median, and where there are several runs the least and the most."""
    middle, found = medians(runs), []
    for figure in figures:
        values = [run[figure.name] for run in runs]
        shown = [middle[figure.name], *([min(values), max(values)] if len(values) > 1 else [])]
        found.append([figure.title, *(f"{value * figure.scale:,.{figure.digits}f}" for value in shown)])
    return found


def warnings(runs: Sequence[Mapping[str, float]]) -> list[str]:
    """What makes runs doubtful."""
    found = []
    for name, what in (("foreign", "other processes used"), ("stolen", "the hypervisor took")):
        shares = [run.get(name, 0.0) for run in runs]
        if max(shares, default=0.0) > NOISY:
            found.append(f"{what} up to {max(shares):.0%} of the CPUs' time: repeat on a quiet machine")
    return found


def show(report: Report, figures: Sequence[Figure], *, console: Console | None = None) -> None:
    """The table, on standard output."""
    out = console or Console()
    table = Table(title=report.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    table.add_column("")
    several = len(report.runs) > 1
    for name in ("median", "least", "most") if several else ("",):
        table.add_column(name, justify="right")
    for row in rows(report.runs, figures):
        table.add_row(*row)
    out.print(table)
    times = "1 run" if not several else f"{len(report.runs)} runs"
    work = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in report.work.items())
    engine = ", ".join(f"{name} {value}" for name, value in report.engine.items() if value and name in ENGINE_SHOWN)
    mine, software = report.machine, ", ".join(f"{name} {value}" for name, value in report.versions.items())
    lines = [
        ("work", work),
        ("measured", f"{times} after a warm-up of {report.warm_up}"),
        ("engine", engine),
        ("machine", f"{mine['cpu']}, {mine['threads']} threads, {mine['memory_bytes'] / 1e9:.0f} GB"),
        ("", " ".join(mine["flags"])),
        ("versions", software),
        ("set", ", ".join(f"{name}={value}" for name, value in report.environment.items())),
        *(("note", note) for note in report.notes),
        *(("warning", warning) for warning in warnings(report.runs)),
    ]
    notes = Table(box=None, show_header=False, pad_edge=False)
    notes.add_column(style="dim", no_wrap=True)
    notes.add_column(overflow="fold")
    for name, line in lines:
        if line:
            notes.add_row(name, line)
    out.print(notes)


ENGINE_SHOWN = (
    *("model", "device", "dtype", "model_impl", "quantization", "kv_cache_dtype", "kernels", "cpu_threads"),
    *("block_size", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "url"),
)


def write(report: Report, path: Path) -> None:
    """JSON, for `--json`. Raises ConfigError where the file cannot be written."""
    try:
        path.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    except OSError as exc:
        raise ConfigError(f"--json {path} cannot be written: {exc.strerror or exc}") from exc


def say(line: str) -> None:
    """How far it is, for the person at the terminal."""
    print(line, file=sys.stderr, flush=True)
