"""`Cluster.watch` with a real kubectl, against a server that lets an object change at the worst moment."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from cluster import client
from cluster.progress import Progress
from cluster.tools import KUBERNETES, ensure

pytestmark = pytest.mark.timeout(3600)  # kubectl is built where it is not there yet

BEFORE, AFTER = "1", "2"


def web(version: str) -> dict[str, Any]:
    metadata = {"name": "web", "namespace": "demo", "resourceVersion": version}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"seen": version}}


class Changing(BaseHTTPRequestHandler):
    """Says version 1 when it is asked what there is; by the time of a watch it is version 2."""

    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if "watch" in query:
            # As the API server: from a version come the changes after it, from 0 what there is now.
            kind = "ADDED" if query["resourceVersion"] == ["0"] else "MODIFIED"
            return self.say({"type": kind, "object": web(AFTER)}, hold=True)
        if path.startswith("/api/v1/namespaces/demo/configmaps"):
            self.asked.append(self.path)
            items = {"apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": BEFORE}}
            return self.say(web(BEFORE) if path.endswith("/web") else {**items, "items": [web(BEFORE)]})
        kinds = {"name": "configmaps", "namespaced": True, "kind": "ConfigMap", "verbs": ["get", "list", "watch"]}
        documents: dict[str, dict[str, Any]] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
            "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [kinds]},
        }
        self.say(documents[path])

    def say(self, document: dict[str, Any], *, hold: bool = False) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        body = json.dumps(document).encode() + b"\n"
        if not hold:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if hold:
            self.rfile.read(1)  # until kubectl goes

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.Cluster]:
    Changing.asked = []
    programs = ensure(Progress(), (KUBERNETES,))
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), Changing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        context = {"cluster": "c", "user": "u"}
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": context}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps(config))
        yield client.Cluster("local", tmp_path / "config", programs["kubectl"], Path("helm"), direct=True)
        server.shutdown()
        thread.join()


def test_what_changes_between_the_first_look_and_the_watch_is_seen(cluster: client.Cluster) -> None:
    seen: list[str] = []

    def until(event: client.Event) -> bool:
        seen.append(event.object["data"]["seen"])
        return seen[-1] == AFTER

    found = cluster.watch("the change", "configmap/web", "-n", "demo", until=until, deadline_s=10)
    assert found["metadata"]["resourceVersion"] == AFTER and seen == [BEFORE, AFTER]
    assert "fieldSelector=metadata.name%3Dweb" in Changing.asked[0]
