"""A way to the router from outside the cluster: `kubectl port-forward`, for as long as it is needed."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from quire_operator.errors import PluginError

FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ")


@dataclass(frozen=True)
class Target:
    """A Service."""

    namespace: str
    service: str
    port: int


def target_of(url: str) -> Target | None:
    """The Service behind an address inside the cluster; None for one that is reached directly. Pure."""
    parts = urlsplit(url)
    names = (parts.hostname or "").split(".")
    if len(names) == 2 or (len(names) > 2 and names[2] == "svc"):
        return Target(names[1], names[0], parts.port or (443 if parts.scheme == "https" else 80))
    return None


@contextmanager
def forwarded(target: Target, flags: list[str]) -> Iterator[str]:
    """Address of the Service from here, without a path. flags: which cluster. Raises PluginError."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise PluginError("kubectl is not in PATH, and the way to the router is its port-forward; --url names another")
    command = [kubectl, "port-forward", f"service/{target.service}", f":{target.port}", *flags]
    command += [f"--namespace={target.namespace}", "--address=127.0.0.1", "--pod-running-timeout=10s"]
    with tempfile.TemporaryFile() as errors:
        # A session of its own: Ctrl-C ends an answer, not the way to the router.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        assert process.stdout is not None
        out = process.stdout
        drain = threading.Thread(target=out.read, daemon=True)  # it tells of every connection
        try:
            found = next((match for line in out if (match := FORWARDING.match(line))), None)
            if found is None:
                process.wait()
                errors.seek(0)
                said = errors.read().decode(errors="replace").strip() or "kubectl port-forward ended"
                raise PluginError(
                    f"no way to Service {target.namespace}/{target.service}: {said.removeprefix('error: ')}; "
                    "--url names another address of the router"
                )
            drain.start()
            yield f"http://127.0.0.1:{int(found[1])}"
        finally:
            process.terminate()
            process.wait()
            if drain.ident is not None:
                drain.join()
            out.close()
