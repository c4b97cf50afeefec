"""Which files of the repository a Dockerfile takes in. Pure but for reading the tree.

The answer comes from the Dockerfile's own COPY lines and from .dockerignore, so that the content hash and the engine
cannot disagree. Forbidden here: lists of folders that repeat what a Dockerfile says.
"""

import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cluster.errors import UsageError


@dataclass(frozen=True)
class IgnoreRule:
    """One line of .dockerignore. `keeps` is the leading exclamation mark."""

    pattern: re.Pattern[str]
    keeps: bool


def parse_ignore(text: str) -> tuple[IgnoreRule, ...]:
    """The rules in order; the last one that matches a path or a folder above it decides."""
    rules = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        keeps = line.startswith("!")
        rules.append(IgnoreRule(re.compile(_regex(line.removeprefix("!").strip("/"))), keeps))
    return tuple(rules)


def _regex(pattern: str) -> str:
    out = ""
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] == "*":
            out, at = out + "[^/]*", at + 1
        elif pattern[at] == "?":
            out, at = out + "[^/]", at + 1
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return out + r"(?:/.*)?\Z"


def ignored(path: str, rules: tuple[IgnoreRule, ...]) -> bool:
    """Whether .dockerignore hides the path (relative to the context, with slashes) from a build."""
    verdict = False
    for rule in rules:
        if rule.pattern.match(path):
            verdict = not rule.keeps
    return verdict


def copied_sources(dockerfile: str) -> tuple[str, ...]:
    """Paths that COPY and ADD take from the build context, in order of appearance, each once."""
    sources: dict[str, None] = {}
    for instruction in _instructions(dockerfile):
        words = shlex.split(instruction)
        if words[0].upper() not in {"COPY", "ADD"}:
            continue
        flags = [word for word in words[1:] if word.startswith("--")]
        if any(flag.startswith("--from=") for flag in flags):
            continue
        for source in [word for word in words[1:] if not word.startswith("--")][:-1]:
            sources[str(PurePosixPath(source))] = None
    return tuple(sources)


def _instructions(dockerfile: str) -> list[str]:
    """Whole instructions: comments dropped, continued lines joined. Only COPY and ADD keep their arguments' quoting."""
    lines = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [line.strip() for line in joined.splitlines() if re.match(r"\s*(COPY|ADD)\s", line, re.IGNORECASE)]


def input_files(dockerfile: Path) -> tuple[Path, ...]:
    """Every file that a build from `dockerfile` can see, sorted. Raises UsageError where a COPY names nothing."""
    context = dockerfile.parent
    rules = parse_ignore((context / ".dockerignore").read_text())
    found: set[Path] = set()
    for source in copied_sources(dockerfile.read_text()):
        start = context / source
        if not start.exists():
            raise UsageError(
                f"{dockerfile.name} copies {source}, which is not in {context}; add it or mend the COPY line"
            )
        candidates = [start] if start.is_file() else _walk(start, context, rules)
        found.update(path for path in candidates if not ignored(path.relative_to(context).as_posix(), rules))
    return tuple(sorted(found))


def snapshot(dockerfile: Path, folder: Path) -> Path:
    """Copy what a build can see into the new folder and return the Dockerfile there: the tree may be edited meanwhile."""
    context = dockerfile.parent
    for path in (dockerfile, *input_files(dockerfile)):
        target = folder / path.relative_to(context)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    shutil.copy2(context / ".dockerignore", folder / ".dockerignore")
    return folder / dockerfile.name


def _walk(folder: Path, context: Path, rules: tuple[IgnoreRule, ...]) -> list[Path]:
    files: list[Path] = []
    for here, folders, names in os.walk(folder):
        below = Path(here)
        folders[:] = [name for name in folders if not ignored((below / name).relative_to(context).as_posix(), rules)]
        files.extend(below / name for name in names)
    return files
