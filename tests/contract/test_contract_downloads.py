"""What the chart is told of ways out, or an LLMDeployment of a role, brings a model: rendered by Helm, read by the operator's settings, built into
a pod, and that pod's `fetch` is run as the kubelet would, on files of its own where the pod has mounts.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bucket_server import FILES as OF_THE_BUCKET
from bucket_server import ROLE, store
from certificates import self_signed
from faulty_server import faulty_server
from helm_kit import render, variables
from operator_kit import owner
from quire_operator.resources import PodDefaults, build_pod_template
from quire_operator.settings import Settings
from threaded_server import served

# Helm is built once from the Go module proxy where it is not in the cache yet.
pytestmark = pytest.mark.timeout(3600)

Object = dict[str, Any]
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 999}


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """One that makes tunnels: its address, and where they went."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            asked.append(self.path)
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                self.send_response(200)
                self.end_headers()
                back = threading.Thread(target=pump, args=(far, self.connection))
                back.start()
                pump(self.connection, far)
                back.join()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    def pump(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):  # either side may go away
            while chunk := one.recv(65536):
                other.sendall(chunk)
            other.shutdown(socket.SHUT_WR)

    with served(Handler) as url:
        yield url, asked


def settings(objects: list[Object], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of the operator's container."""
    for name, value in variables(objects, "operator").items():
        monkeypatch.setenv(name, value)
    return Settings()


def fetched(container: Object, mounts: dict[str, Path]) -> subprocess.CompletedProcess[str]:
    """Runs what the container runs, with nothing in its environment but what the pod says. mounts: a path in the pod, and where it is here."""

    def here(text: str) -> str:
        for inside, outside in mounts.items():
            text = text.replace(inside, str(outside))
        return text

    words = [here(word) for word in container["args"] if not word.startswith("--jitter")]
    environment = {each["name"]: here(each["value"]) for each in container["env"]}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "quire.entrypoints.cli", *words, "--attempts=1"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def files_in(folder: Path) -> dict[str, bytes]:
    [content] = folder.iterdir()
    return {path.name: path.read_bytes() for path in content.iterdir() if not path.name.startswith(".")}


def test_a_hub_of_ones_own_behind_a_proxy_and_an_authority_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path, "hub")
    with faulty_server(FILES, certificate=certificate) as hub, proxy() as (address, asked):
        ways_out = {"hubEndpoint": hub.url, "httpsProxy": address, "caConfigMap": "internal-ca", "noProxy": ".svc"}
        objects = render({"imagePrefix": "mirror.internal/", "downloads": ways_out})
        defaults = PodDefaults.from_settings(settings(objects, monkeypatch))
        pod = build_pod_template(owner({"model": {"source": "hf://org/name"}}), defaults)["spec"]
        [container] = pod["initContainers"]

        assert {each["image"].partition("/")[0] for each in (*pod["containers"], container)} == {"mirror.internal"}
        assert {"name": "ca", "configMap": {"name": "internal-ca"}} in pod["volumes"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        (tmp_path / "ca").mkdir()
        (tmp_path / "ca" / "ca.crt").write_bytes(certificate[1].read_bytes())
        here = {mounts["ca"]: tmp_path / "ca", mounts["model"]: tmp_path / "model"}
        done = fetched(container, here)
        assert done.returncode == 0, done.stderr
        assert files_in(tmp_path / "model") == FILES
        assert set(asked) == {hub.url.removeprefix("https://")} and hub.requests

        (tmp_path / "ca" / "ca.crt").write_bytes(self_signed(tmp_path, "another")[1].read_bytes())
        refused = fetched(container, {**here, mounts["model"]: tmp_path / "other"})
        assert refused.returncode == 1 and "CERTIFICATE_VERIFY_FAILED" in refused.stderr


def test_a_role_instead_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with store() as there:
        bucket = {
            "source": "s3://bucket/m",
            "endpoint": there.url,
            "s3": {"webIdentity": {"roleArn": ROLE, "endpoint": there.url}},
        }
        defaults = PodDefaults.from_settings(settings(render(), monkeypatch))
        [container] = build_pod_template(owner({"model": bucket}), defaults)["spec"]["initContainers"]
        mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
        (tmp_path / "identity").mkdir()
        (tmp_path / "identity" / "token").write_text("of-the-pod")
        here = {mounts["identity"]: tmp_path / "identity", mounts["model"]: tmp_path / "model"}
        done = fetched(container, here)
        assert done.returncode == 0, done.stderr
        assert files_in(tmp_path / "model") == OF_THE_BUCKET
        assert (there.shown, there.bad) == (["of-the-pod"], [])
