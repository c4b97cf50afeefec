"""A cluster as a table for people. Pure; `local_status` collects."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Report:
    """The answer of `make cluster-status`."""

    text: str
    healthy: bool
    """Decides the exit status."""


@dataclass(frozen=True)
class MachineStatus:
    """One row."""

    name: str
    address: str
    condition: str
    memory: int | None
    """Bytes of anonymous memory, pods included."""
    pods: int | None
    allocatable: str
    daemons: Sequence[tuple[str, bool]]
    """Name, and whether it runs."""


@dataclass(frozen=True)
class ImageStatus:
    """An image of the seed and the nodes that have it."""

    ref: str
    size: int
    nodes: Sequence[str]


def size(count: int | None) -> str:
    """Bytes for people."""
    if count is None:
        return "?"
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    minutes = int(seconds) // 60
    return (
        f"{minutes // 60} h {minutes % 60} min"
        if minutes >= 60
        else f"{minutes} min"
        if minutes
        else f"{int(seconds)} s"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def render(heading: str, machines: Sequence[MachineStatus], images: Sequence[ImageStatus]) -> str:
    """The text of the answer."""
    rows = [["MACHINE", "ADDRESS", "STATUS", "MEMORY", "PODS", "ALLOCATABLE", "DAEMONS"]]
    for machine in machines:
        daemons = " ".join(name if runs else f"{name}(DEAD)" for name, runs in machine.daemons)
        pods = "-" if machine.pods is None else str(machine.pods)
        rows.append(
            [machine.name, machine.address, machine.condition, size(machine.memory), pods, machine.allocatable, daemons]
        )
    pictures = [["IMAGE", "ARCHIVE SIZE", "ON NODES"]]
    pictures += [
        [image.ref.removeprefix("docker.io/"), size(image.size), " ".join(image.nodes) or "none"] for image in images
    ]
    return f"{heading}\n\n{table(rows)}\n\n{table(pictures)}"
