"""`kubectl llmd chat`: the real kubectl opens the way to the router, and is gone afterwards."""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path

import pytest

from played_kubelet import played_kubelet
from quire_operator.errors import PluginError
from quire_operator.plugin.forward import Target, forwarded
from real_api import RealApi

pytestmark = [
    pytest.mark.timeout(3600),  # the programs are built where they are not there yet
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not in PATH"),
]


def test_a_port_of_this_machine_leads_to_the_service_for_as_long_as_it_is_needed(api: RealApi, tmp_path: Path) -> None:
    namespace = api.namespace()
    config = tmp_path / "person"
    config.write_text(json.dumps(api.kubeconfig()))
    core = f"/api/v1/namespaces/{namespace}"
    port = {"port": 80, "targetPort": 8080}
    service = {"metadata": {"name": "quire-router"}, "spec": {"selector": {"app": "router"}, "ports": [port]}}
    node = f"node-{namespace}"
    container = {"name": "router", "image": "x", "ports": [{"containerPort": 8080}]}
    pod = {
        "metadata": {"name": "router-1", "labels": {"app": "router"}},
        "spec": {"nodeName": node, "containers": [container]},
    }
    for path, body in ((f"{core}/services", service), (f"{core}/pods", pod)):
        made = api.create(path, body, dry_run=False)
        assert made.status_code == 201, made.text
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    api.patch(f"{core}/pods/router-1/status", {"status": ready})
    with played_kubelet(api, tmp_path, node) as kubelet:
        with forwarded(Target(namespace, "quire-router", 80), [f"--kubeconfig={config}"]) as url:
            found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)", url)
            assert found is not None
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=10).close()
        assert [what for what, _ in kubelet.asked] == [f"/portForward/{namespace}/router-1"]
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(found[1])), timeout=10)


def test_a_way_that_is_none_is_told_with_a_remedy(api: RealApi, tmp_path: Path) -> None:
    config = tmp_path / "person"
    config.write_text(json.dumps(api.kubeconfig()))
    with (
        pytest.raises(PluginError, match=r"no way to Service .*/quire-router: .*not found.*--url"),
        forwarded(Target(api.namespace(), "quire-router", 80), [f"--kubeconfig={config}"]),
    ):
        raise AssertionError("there is no such Service")
