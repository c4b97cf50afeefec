"""How far a batch is: a bar on standard error where that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def progress(
    total: int, show: bool | Callable[..., Any] = True, *, label: str = "prompts"
) -> Iterator[Callable[[], None]]:
    """Gives the function that counts one more. show: whether at all, or what makes a bar (called as tqdm is)."""
    if callable(show):
        bar = show(total=total, desc="Processed prompts")
        try:
            yield lambda: bar.update(1)
        finally:
            bar.close()
        return
    if not (show and sys.stderr.isatty()):
        yield lambda: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(label, total=total)
        yield lambda: shown.advance(task)
