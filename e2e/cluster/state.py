"""What the harness started, in one file that is replaced atomically, and what to do about what is found. Decisions are pure.

A process is recorded before it may do anything that could outlive it, so after any crash the file names everything.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from cluster.errors import StateError
from cluster.processes import Process

FORMAT = 1


class Phase(Enum):
    STARTING = "starting"
    READY = "ready"


@dataclass
class MachineState:
    """A machine's first process and its daemons, as the host sees them."""

    init: Process
    daemons: dict[str, Process] = field(default_factory=dict)


@dataclass
class ClusterState:
    """Everything that `down` needs to know, written again on every change."""

    boot: str
    fingerprint: str
    nodes: int
    gpus: int
    phase: Phase = Phase.STARTING
    machines: dict[str, MachineState] = field(default_factory=dict)
    created_dirs: list[str] = field(default_factory=list)
    """Mount points that were not there before; empty ones are removed again."""
    programs: dict[str, str] = field(default_factory=dict)
    started: float = 0.0
    """Seconds since the epoch."""
    daemons: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    """Command lines by machine and name, so that one can be started again."""

    def save(self, path: Path) -> None:
        document = asdict(self) | {"format": FORMAT, "phase": self.phase.value}
        scratch = path.with_suffix(".tmp")
        with scratch.open("w") as file:
            json.dump(document, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        scratch.rename(path)


def load(path: Path) -> ClusterState | None:
    """The recorded state, or None when there is none. Raises StateError for a file that cannot be understood."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return parse(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"{path} cannot be understood ({error!r}), so what was started is unknown; restart the machine and remove the file"
        ) from error


def parse(document: dict[str, Any]) -> ClusterState:
    if document.pop("format") != FORMAT:
        raise ValueError("another format")
    machines = {
        name: MachineState(
            Process(**machine["init"]), {daemon: Process(**process) for daemon, process in machine["daemons"].items()}
        )
        for name, machine in document.pop("machines").items()
    }
    return ClusterState(phase=Phase(document.pop("phase")), machines=machines, **document)


class Verdict(Enum):
    """What `up` does about what it finds."""

    BUILD = "there is no cluster"
    REUSE = "the cluster runs as wanted"
    REBUILD = "the cluster is not as wanted"


def judge(
    state: ClusterState | None,
    fingerprint: str,
    boot: str,
    leftovers: bool,
    is_alive: Callable[[Process], bool],
) -> tuple[Verdict, str]:
    """Decide from what was recorded and what lives; the second value says why. `leftovers`: a work directory exists."""
    if state is None:
        return (Verdict.REBUILD, "files of a cluster without a record") if leftovers else (Verdict.BUILD, "no cluster")
    if state.boot != boot:
        return Verdict.REBUILD, "the machine was restarted since"
    if state.phase is not Phase.READY:
        return Verdict.REBUILD, "an earlier start was cut off"
    dead = dead_processes(state, boot, is_alive)
    if dead:
        return Verdict.REBUILD, f"not running any more: {', '.join(dead)}"
    if state.fingerprint != fingerprint:
        return Verdict.REBUILD, "it was started with another configuration"
    return Verdict.REUSE, "all processes run"


def dead_processes(state: ClusterState, boot: str, is_alive: Callable[[Process], bool]) -> list[str]:
    """`machine` and `machine/daemon` of everything recorded that does not run."""
    dead = []
    for name, machine in state.machines.items():
        if state.boot != boot or not is_alive(machine.init):
            dead.append(name)
            continue
        dead += [f"{name}/{daemon}" for daemon, process in machine.daemons.items() if not is_alive(process)]
    return dead


def unreachable(state: ClusterState, boot: str, is_alive: Callable[[Process], bool]) -> list[str]:
    """Machines and containerds that do not run: no image can be given to them."""
    dead = dead_processes(state, boot, is_alive)
    return [name for name in dead if name.partition("/")[2] in ("", "containerd")]
