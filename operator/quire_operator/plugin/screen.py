"""A picture as text and colours. Pure: gives renderables, prints nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from quire_operator.plugin.history import Entry
from quire_operator.plugin.picture import Bar, Picture, PodLine

BAR_WIDTH = 30
PHASES = {"Ready": "green", "Degraded": "yellow", "Failed": "red", "ScaledToZero": "dim"}
GOOD_IF_FALSE = {"Progressing"}


def one(picture: Picture) -> RenderableType:
    """Everything about one LLMDeployment."""
    parts: list[RenderableType] = [_head(picture)]
    if picture.bar is not None:
        parts += [Text(), _progress(picture.bar)]
    if picture.conditions:
        parts += [Text(), _conditions(picture)]
    if picture.revisions:
        parts += [Text(), _revisions(picture)]
    if picture.pods:
        parts += [Text(), _pods(picture.pods)]
    return Group(*parts)


def many(pictures: Sequence[Picture]) -> RenderableType:
    """One line each."""
    table = _table("NAME", "PHASE", "READY", "REVISION", "ROLLOUT", "WHY")
    for picture in pictures:
        ready = picture.condition("Ready")
        table.add_row(
            picture.name,
            phase(picture),
            picture.summary,
            picture.revisions[0].name if picture.revisions else "",
            _shortest(picture.bar) if picture.bar is not None else "",
            "" if picture.ready or ready is None else ready.reason,
        )
    return table


def revisions(entries: Sequence[Entry]) -> RenderableType:
    """The history, each revision with what it changed."""
    table = _table("REVISION", "AGE", "PODS", "TRACK", "MODEL", "CHANGED")
    for entry in entries:
        changed = Text("\n".join(entry.changes) if entry.changes else "-", overflow="fold")
        table.add_row(entry.name, age(entry.age_s), str(entry.replicas), entry.track, entry.model, changed)
    return table


def phase(picture: Picture) -> Text:
    """With its colour."""
    return Text(picture.phase, style=PHASES.get(picture.phase, "cyan"))


def age(seconds: float) -> str:
    """As kubectl shows it: 42s, 7m, 3h, 5d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _head(picture: Picture) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    word = phase(picture)
    for held, text in ((picture.paused, "paused"), (picture.aborted is not None, "aborted"), (not picture.seen, "")):
        if held and text:
            word.append(f", {text}", style="yellow")
    if not picture.seen:
        word.append(", the operator has not seen the last edit", style="yellow")
    if picture.command is not None:
        word.append(f", command {picture.command} waits for the operator", style="yellow")
    table.add_row("Name", Text(f"{picture.namespace}/{picture.name}", style="bold"))
    table.add_row("Phase", word)
    table.add_row("Ready", Text(picture.summary))
    table.add_row("Model", Text(f"{', '.join(picture.models)} from {picture.source}", overflow="fold"))
    if picture.url is not None:
        table.add_row("URL", Text(picture.url, overflow="fold"))
    if picture.metrics:
        shown = (f"{each.name} {each.value if each.value is not None else each.state}" for each in picture.metrics)
        table.add_row("Load", Text(", ".join(shown)))
    return table


def _progress(bar: Bar) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_row("Rollout", Text(_short(bar)), Text())
    table.add_row("  pods", _filled(bar.ready, bar.wanted), Text(f"{bar.ready} of {bar.wanted} ready"))
    if bar.weight is not None:
        table.add_row("  requests", _filled(bar.weight, 100), Text(f"{bar.weight} %"))
    return Group(table, Text(f"  {bar.message}", style="dim"))


def _short(bar: Bar) -> str:
    step = f", step {bar.step} of {bar.of}" if bar.step is not None else ""
    return f"{bar.strategy} to {bar.revision}{step}, for {age(bar.age_s)}"


def _shortest(bar: Bar) -> str:
    return f"{bar.strategy} {bar.step}/{bar.of}" if bar.step is not None else bar.strategy


def _filled(part: int, whole: int) -> Text:
    """Told by its shape too, where there are no colours."""
    done = round(BAR_WIDTH * min(part / whole, 1.0)) if whole > 0 else 0
    return Text.assemble(("█" * done, "green"), ("░" * (BAR_WIDTH - done), "dim"))


def _conditions(picture: Picture) -> RenderableType:
    table = _table("CONDITION", "STATUS", "REASON", "MESSAGE")
    for each in picture.conditions:
        good = (each.status == "True") != (each.type in GOOD_IF_FALSE)
        style = "green" if good else "dim" if each.status == "Unknown" else "yellow"
        told = picture.bar is not None and each.message == picture.bar.message
        message = "(see Rollout)" if told else each.message
        table.add_row(each.type, Text(each.status, style=style), each.reason, Text(message, overflow="fold"))
    return table


def _revisions(picture: Picture) -> RenderableType:
    table = _table("REVISION", "TRACK", "PODS", "READY", "WEIGHT", "MODEL")
    for each in picture.revisions:
        weight = "-" if each.weight is None else f"{each.weight} %"
        model = Text(each.model or "", overflow="fold")
        table.add_row(each.name, each.track, str(each.replicas), str(each.ready), weight, model)
    return table


def _pods(pods: Sequence[PodLine]) -> RenderableType:
    table = _table("POD", "STATE", "RESTARTS", "AGE", "NODE")
    for each in pods:
        style = "green" if each.ready else "red" if each.why else "yellow"
        table.add_row(each.name, Text(each.state, style=style), str(each.restarts), age(each.age_s), each.node)
    reasons = [Text(each.why, style="red", overflow="fold") for each in pods if each.why]
    return Group(table, *reasons)


def _table(*columns: str) -> Table:
    """As kubectl prints them: no lines, capitals above. The last column may be folded, the others never are."""
    table = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, header_style="")
    for column in columns:
        table.add_column(column, no_wrap=column != columns[-1], overflow="fold")
    return table
