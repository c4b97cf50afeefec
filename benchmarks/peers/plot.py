"""The compared figure of every work as bars, one panel each, as SVG. Pure; no plotting library."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape

from peers.table import SHEETS, Rounds
from quire.bench.stats import medians

WIDTH, LABEL, BAR, GAP, TITLE, PANEL, MARGIN = 860, 150, 18, 6, 26, 22, 20
OURS, PEERS, INK, FAINT = "#1f6f8b", "#b9b4ab", "#222222", "#666666"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def svg(results: Mapping[str, Mapping[str, Rounds]], title: str, subtitle: str) -> str:
    """results: by work, then lane. A bar is the median; a line over it spans all rounds."""
    parts = [_text(MARGIN, 28, title, 17, INK, "bold"), _text(MARGIN, 48, subtitle, 11, FAINT)]
    at = 66
    for work, lanes in results.items():
        panel, at = _panel(work, lanes, at)
        parts += panel
    size = f"width='{WIDTH}' height='{at}' viewBox='0 0 {WIDTH} {at}'"
    ground = f"<rect width='{WIDTH}' height='{at}' fill='white'/>"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{ground}{''.join(parts)}</svg>\n"


def _panel(work: str, lanes: Mapping[str, Rounds], top: int) -> tuple[list[str], int]:
    sheet = SHEETS[work]
    figure = sheet.figures[0]
    best = "more is better" if sheet.more_is_better else "less is better"
    parts = [
        _text(MARGIN, top + 14, sheet.title, 13, INK, "bold"),
        _text(WIDTH - MARGIN, top + 14, f"{figure.title}, {best}", 11, FAINT, anchor="end"),
    ]
    most = max((run[figure.name] for runs in lanes.values() for run in runs), default=1.0) or 1.0
    scale = (WIDTH - 2 * MARGIN - LABEL - 80) / most
    at, left = top + TITLE, MARGIN + LABEL
    for name, runs in lanes.items():
        values = [run[figure.name] for run in runs]
        middle = medians(runs)[figure.name]
        color = OURS if name.startswith("quire") else PEERS
        parts.append(_text(left - 8, at + 13, name, 12, INK, anchor="end"))
        parts.append(f"<rect x='{left}' y='{at}' width='{middle * scale:.1f}' height='{BAR}' fill='{color}'/>")
        low, high, mid = left + min(values) * scale, left + max(values) * scale, at + BAR / 2
        if len(values) > 1:
            parts.append(f"<path d='M{low:.1f} {mid}H{high:.1f}' stroke='{INK}' stroke-width='1.5'/>")
        shown = f"{middle * figure.scale:,.{figure.digits}f}"
        parts.append(_text(round(max(high, left + middle * scale)) + 6, at + 13, shown, 12, INK))
        at += BAR + GAP
    return parts, at + PANEL


def _text(x: int, y: int, words: str, size: int, color: str, weight: str = "normal", *, anchor: str = "start") -> str:
    style = f"font-size='{size}' font-weight='{weight}' fill='{color}' text-anchor='{anchor}'"
    return f"<text x='{x}' y='{y}' {FONT} {style}>{escape(words)}</text>"
