"""`python -m peers`: prepare the engines, run the works in turn, write table, plot and raw figures."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from peers import models, plot, table
from peers.compare import WORKS, Results, race
from peers.home import PeerError
from peers.lanes import LANES
from quire.bench import machine
from quire.bench.report import warnings
from quire.bench.serve import encoder
from quire.config import EngineConfig

RESULTS = Path(__file__).resolve().parent.parent / "results"
DEFAULT_LANES = ("quire", "llama.cpp Q4_1", "llama.cpp Q4_0", "vllm bf16")


def main(arguments: list[str] | None = None) -> int:
    names = [lane.name for lane in LANES]
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument(
        "--lane", action="append", choices=names, help=f"repeat it; default: {', '.join(DEFAULT_LANES)}"
    )
    parser.add_argument("--work", action="append", choices=WORKS, help="repeat it; default: all")
    parser.add_argument("--model", choices=models.NAMES, default="smol")
    parser.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="how often each lane runs each work; default: 3"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    parser.add_argument(
        "--add",
        action="store_true",
        help="keep the other works in that folder's file of today, this commit and this model",
    )
    parser.add_argument("--prepare", action="store_true", help="only install engines and convert models")
    given = parser.parse_args(arguments)
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    wanted = given.lane or DEFAULT_LANES
    lanes = [lane for lane in LANES if lane.name in wanted]
    works = [] if given.prepare else [work for work in WORKS if work in (given.work or WORKS)]
    encode = encoder(EngineConfig.model_validate({"model": str(models.shipped_gguf())}))
    facts = {"machine": machine.machine(), "versions": machine.versions(), "environment": machine.environment()}
    stem = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{_slug(facts['machine'])}-{given.model}"

    def keep(results: Results) -> None:
        if results.figures:
            given.out.mkdir(parents=True, exist_ok=True)
            for suffix, page in pages(results, facts, given.model).items():
                (given.out / f"{stem}.{suffix}").write_text(page)

    try:
        earlier = read_earlier(given.out / f"{stem}.json", facts) if given.add else None
        results = race(lanes, works, given.model, given.rounds, encode, kept=keep, earlier=earlier)
    except PeerError as exc:
        print(f"peers: error: {exc}", file=sys.stderr)
        return 1
    keep(results)
    show(results)
    if results.figures:
        print(f"written: {given.out / stem}.json, .md, .svg")
    return 0


def pages(results: Results, facts: dict[str, Any], model: str) -> dict[str, str]:
    """What is written, by suffix."""
    figures = {work: results.figures[work] for work in WORKS if work in results.figures}
    cpu, threads = facts["machine"]["cpu"], facts["machine"]["threads"]
    content = {
        **facts,
        "model": model,
        "lanes": results.versions,
        "failures": results.failures,
        "figures": figures,
    }
    title, subtitle = (
        f"Quire and its peers, {model}",
        f"{cpu}, {threads} threads, {' '.join(facts['machine']['flags'])}",
    )
    sections = [table.markdown(table.tabulate(work, lanes)) for work, lanes in figures.items()]
    versions = [f"- {name}: {version}" for name, version in results.versions.items()]
    failures = [f"- {name}: {reason}" for name, reason in results.failures.items()]
    runs = [run for lanes in figures.values() for rounds in lanes.values() for run in rounds]
    doubts = [f"- {line}" for line in warnings(runs)]
    software = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    head = [f"# {title}", "", f"{subtitle}; {software}. `quire ×` is how many times better that lane of Quire is.", ""]
    tail = [
        "### Lanes",
        "",
        *versions,
        *(["", "### Left out", "", *failures] if failures else []),
        *(["", *doubts] if doubts else []),
    ]
    return {
        "json": json.dumps(content, indent=1) + "\n",
        "md": "\n".join([*head, *sections, *tail]) + "\n",
        "svg": plot.svg(figures, title, subtitle),
    }


def read_earlier(file: Path, facts: dict[str, Any]) -> Results:
    """What an earlier call left in `file`; nothing where there is none. Raises PeerError where software or machine differ."""
    if not file.exists():
        return Results()
    try:
        content = json.loads(file.read_text())
    except ValueError as exc:
        raise PeerError(f"{file} cannot be added to: {exc}") from exc
    for name in ("machine", "versions"):
        if content[name] != facts[name]:
            raise PeerError(
                f"{file} is of another {name.rstrip('s')} ({content[name]}): results are added to those of the same only"
            )
    return Results(content["figures"], content["failures"], content["lanes"])


def show(results: Results) -> None:
    """The tables, on standard output."""
    console = Console()
    for work, lanes in results.figures.items():
        rows = table.tabulate(work, lanes)
        shown = Table(title=rows.title, title_justify="left", title_style="bold", box=None, pad_edge=False)
        for index, head in enumerate(rows.heads):
            shown.add_column(head, justify="right" if index else "left")
        for cells in rows.cells:
            shown.add_row(*cells)
        console.print(shown, "")
    for name, reason in results.failures.items():
        console.print(f"left out: {name}: {reason}")


def _slug(facts: dict[str, Any]) -> str:
    """The machine's kind as part of a file name: its name, and the best instruction set that kernels would choose."""
    best = next(
        (
            flag
            for flag in ("amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "sve")
            if flag in facts["flags"]
        ),
        "",
    )
    words = re.sub(r"[^a-z0-9]+", "-", f"{facts['cpu']} {best.replace('_', '')}".lower()).strip("-")
    return f"{words}-{facts['threads']}t"


if __name__ == "__main__":
    sys.exit(main())
