"""A command of the command line whose flags are the fields of a configuration."""

from __future__ import annotations

from typing import Any

import typer
import typer.core

from quire.config import EngineConfig
from quire.entrypoints.flags import normalise, with_flags

NOTES = (
    "Values in brackets are defaults. Write --flag=value; a boolean also works alone or as --no-flag. Every flag is also a "
    "variable (--max-num-seqs is QUIRE_MAX_NUM_SEQS) and a field of the --config file (max_num_seqs); a flag wins over a "
    "variable, a variable over the file. Sizes are bytes, or 512Mi, 4Gi, 1G."
)


def add_command(
    app: typer.Typer, cls: type[EngineConfig], name: str, function: Any, *, skip: frozenset[str] = frozenset()
) -> None:
    """Give `app` a command with a flag for each field of `cls`; see `with_flags`."""

    class Command(typer.core.TyperCommand):
        """Gives booleans without a value one, before anything else looks at the arguments."""

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            return super().parse_args(ctx, normalise(args, cls))

        def format_options(self, ctx: Any, formatter: Any) -> None:
            """One section per group of flags, the command's own first."""
            sections: dict[str, list[tuple[str, str]]] = {}
            for parameter in self.get_params(ctx):
                if (record := parameter.get_help_record(ctx)) is not None:
                    group = getattr(parameter, "rich_help_panel", None)
                    title = "Arguments" if parameter.param_type_name == "argument" else group or "Options"
                    sections.setdefault(title, []).append(record)
            for title, records in sections.items():
                with formatter.section(title):
                    formatter.write_dl(records, col_max=28)
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(NOTES)

    app.command(name, cls=Command)(with_flags(cls, function, skip=skip))
