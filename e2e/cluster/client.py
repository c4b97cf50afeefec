"""A running cluster as data and calls: its kubeconfig, kubectl and helm, and waits that have a deadline and name what they await.

Starts and ends nothing. `providers` make these; tests get theirs from `handle.current`.
"""

import codecs
import json
import os
import re
import selectors
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from cluster import wait
from cluster.errors import CommandError, DeadlineError
from cluster.run import run

INTERNAL_RANGE = "198.18.0.0/15"
GRACE_S = 10.0
"""For a program to say that its own time ran out."""
TUNNEL_DEADLINE_S = 30.0


@dataclass(frozen=True)
class Event:
    """One event of a watch."""

    type: str
    """ADDED, MODIFIED or DELETED; the objects that exist at the start come as ADDED."""
    object: dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs. Safe to share between threads."""

    provider: str
    kubeconfig: Path
    kubectl_program: Path
    helm_program: Path
    direct: bool
    """Whether this host reaches pod and Service addresses without a tunnel."""

    @cached_property
    def environment(self) -> Mapping[str, str]:
        """Environment for programs that talk to this cluster; proxies are told to stay out of the way."""
        return {**os.environ, **exports(self)}

    def kubectl(self, *arguments: str, input_text: str | None = None, deadline_s: float = 60.0) -> str:
        """kubectl's standard output. Raises CommandError with what it said. A `--timeout` of kubectl's own always fits in."""
        deadline_s = max(deadline_s, own_timeout(arguments) + GRACE_S)
        return run(
            [self.kubectl_program, *arguments], input_text=input_text, deadline_s=deadline_s, env=self.environment
        )

    def kubectl_json(self, *arguments: str, deadline_s: float = 60.0) -> dict[str, Any]:
        """The parsed answer of a kubectl command that takes `-o json`."""
        document: dict[str, Any] = json.loads(self.kubectl(*arguments, "-o", "json", deadline_s=deadline_s))
        return document

    def helm(self, *arguments: str, deadline_s: float = 300.0) -> str:
        """helm's standard output."""
        return run([self.helm_program, *arguments], deadline_s=deadline_s, env=self.environment)

    def apply(self, *documents: dict[str, Any], namespace: str | None = None) -> str:
        """`kubectl apply` objects given as data."""
        bundle = {"apiVersion": "v1", "kind": "List", "items": list(documents)}
        return self.kubectl("apply", *_namespace(namespace), "-f", "-", input_text=json.dumps(bundle))

    def wait(self, resource: str, condition: str, *, namespace: str | None = None, deadline_s: float) -> None:
        """`kubectl wait --for`: `condition=Ready`, `delete`, `jsonpath={.status.phase}=Running`. Raises DeadlineError with the object's status."""
        command = ("wait", resource, f"--for={condition}", f"--timeout={deadline_s:.0f}s", *_namespace(namespace))
        try:
            self.kubectl(*command)
        except CommandError as error:
            raise DeadlineError(
                f"{resource} did not reach {condition} within {deadline_s:.0f} s: {error}{self._describe(resource, namespace)}"
            ) from error

    def _describe(self, resource: str, namespace: str | None) -> str:
        try:
            status = self.kubectl_json("get", resource, *_namespace(namespace)).get("status")
        except CommandError as error:
            return f"\nand its status cannot be read: {error}"
        return f"\nits status: {json.dumps(status, indent=1)}"

    def watch(
        self,
        what: str,
        *arguments: str,
        until: Callable[[Event], bool],
        deadline_s: float,
    ) -> dict[str, Any]:
        """Watch `kubectl get ARGUMENTS` until an event satisfies `until`; returns that event's object. `KIND/NAME` may be yet to come.

        `what` names the wait for the error. Nothing is polled; a watch that the server closes is opened again.
        """
        end = time.monotonic() + deadline_s
        last: Event | None = None
        while time.monotonic() < end:
            for event in self._events(arguments, end):
                last = event
                if until(event):
                    return event.object
        seen = (
            f"last seen: {last.type} {json.dumps(last.object.get('status'))[:2000]}"
            if last
            else "nothing was ever seen"
        )
        raise DeadlineError(
            f"{what} did not happen within {deadline_s:.0f} s (kubectl get {' '.join(arguments)}); {seen}"
        )

    def _events(self, arguments: tuple[str, ...], end: float) -> Iterator[Event]:
        shown = ("--watch", "--output-watch-events", "-o", "json")
        command = [str(self.kubectl_program), "get", *as_list(arguments), *shown]
        with subprocess.Popen(
            command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None and process.stderr is not None
            try:
                yield from decode_events(_chunks(process.stdout.fileno(), end))
                if time.monotonic() < end and process.wait(5) != 0:
                    raise CommandError(
                        f"`{' '.join(command)}` failed: {process.stderr.read().decode(errors='replace').strip()}"
                    )
            finally:
                process.kill()

    @contextmanager
    def reach(self, namespace: str, service: str, port: int, scheme: str = "http") -> Iterator[str]:
        """Base URL of a Service for this host: its own address where that can be reached, else a tunnel that lasts for the block."""
        if self.direct:
            address = self.kubectl_json("get", "service", service, "-n", namespace)["spec"]["clusterIP"]
            yield f"{scheme}://{address}:{port}"
            return
        command = [str(self.kubectl_program), "port-forward", "-n", namespace, f"service/{service}", f":{port}"]
        with (
            tempfile.NamedTemporaryFile(prefix="port-forward-") as log,  # not a pipe: it writes a line per connection
            subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            ) as process,
        ):
            try:
                yield f"{scheme}://127.0.0.1:{_tunnel(process, Path(log.name))}"
            finally:
                process.kill()


def exports(cluster: Cluster) -> dict[str, str]:
    """Variables for a shell or a child process."""
    folders = list(dict.fromkeys(str(program.parent) for program in (cluster.kubectl_program, cluster.helm_program)))
    bypass = [entry for entry in os.environ.get("NO_PROXY", os.environ.get("no_proxy", "")).split(",") if entry]
    if INTERNAL_RANGE not in bypass:
        bypass.append(INTERNAL_RANGE)
    here = os.environ.get("PATH", "").split(os.pathsep)
    path = os.pathsep.join([*(folder for folder in folders if folder not in here), *here])
    around = ",".join(bypass)  # programs differ in which spelling they read
    return {"KUBECONFIG": str(cluster.kubeconfig), "NO_PROXY": around, "no_proxy": around, "PATH": path}


def as_list(arguments: Iterable[str]) -> list[str]:
    """`KIND/NAME` as a list of at most one. A watch of a list goes on from the list's version. That of an object does not: kubectl gets the
    object, then takes the first event of a new watch for the same and skips it, so what happens in between is never shown."""
    listed = []
    for argument in arguments:
        kind, slash, name = argument.partition("/")
        listed += (
            [kind, f"--field-selector=metadata.name={name}"]
            if slash and re.fullmatch("[a-z0-9.]+", kind)
            else [argument]
        )
    return listed


def own_timeout(arguments: Iterable[str]) -> float:
    """Seconds of a `--timeout=60s` among kubectl's arguments; 0 without."""
    found = (re.fullmatch(r"--timeout=(\d+)s", argument) for argument in arguments)
    return max((float(match[1]) for match in found if match), default=0.0)


def _tunnel(process: subprocess.Popen[bytes], log: Path) -> int:
    """The local port of a `kubectl port-forward`, once it says so."""
    ports: list[int] = []

    def look() -> str | None:
        ended = process.poll() is not None
        if match := re.match(r"Forwarding from 127\.0\.0\.1:(\d+)", text := log.read_text(errors="replace")):
            ports.append(int(match[1]))
            return None
        if ended:
            raise CommandError(f"kubectl port-forward opened no tunnel: {text.strip()}")
        return "it says nothing"

    wait.until("opening of a tunnel", look, deadline_s=TUNNEL_DEADLINE_S, log=log)
    return ports[0]


def _namespace(namespace: str | None) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()


def _chunks(stream: int, end: float) -> Iterator[bytes]:
    """What arrives on a pipe until it closes or the time is over."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0 and selector.select(left):
            if not (chunk := os.read(stream, 1 << 16)):
                return
            yield chunk


def decode_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Events from concatenated JSON objects that are cut anywhere, also inside a character."""
    objects, characters, text = json.JSONDecoder(), codecs.getincrementaldecoder("utf-8")(), ""
    for chunk in chunks:
        text += characters.decode(chunk)
        while text := text.lstrip():
            try:
                document, used = objects.raw_decode(text)
            except json.JSONDecodeError:  # the object is cut; the rest comes
                break
            text = text[used:]
            yield Event(document["type"], document["object"])


def shell_exports(cluster: Cluster) -> str:
    """`export` lines for `eval`."""
    values = exports(cluster)
    folders = values["PATH"].removesuffix(os.environ.get("PATH", "")).rstrip(os.pathsep)
    lines = [f"export {name}={shlex.quote(values[name])}" for name in ("KUBECONFIG", "NO_PROXY", "no_proxy")]
    if folders:
        lines.append(f'export PATH={shlex.quote(folders)}:"$PATH"')
    return "\n".join(lines)
