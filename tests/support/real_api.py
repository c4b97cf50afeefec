"""A real kube-apiserver with its etcd, on loopback: schemas, CEL, defaults and server-side apply as users meet them. No controllers.

The programs are those of the cluster harness (built once from the Go module proxy); etcd is Debian's.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from lightkube import AsyncClient
from lightkube.config.kubeconfig import KubeConfig

from certificates import self_signed
from cluster.progress import Progress
from cluster.tools import KUBERNETES, ensure
from cluster.wait import until

TOKEN = "test-admin"
OPERATOR = "quire-operator"
OPERATORS = (OPERATOR, f"{OPERATOR}-2")
EVERYWHERE, ROUTER = f"{OPERATOR}-everywhere", "quire-router"
USERS = (*OPERATORS, EVERYWHERE, ROUTER)
"""Users without rights, one for each process; what they do is in the audit log. Their tokens are their names."""

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [{"level": "Metadata", "users": list(USERS)}, {"level": "None"}],
}
Body = dict[str, Any]


class RealApi:
    """`client` is an administrator's. `folder` holds the logs of both programs."""

    def __init__(self, url: str, folder: Path, kubectl: Path) -> None:
        self.url = url
        self._kubectl = kubectl
        self._audit = folder / "audit.log"
        self.certificates = folder / "certs"
        self._authority = self.certificates / "apiserver.crt"
        self.client = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            verify=ssl.create_default_context(cafile=str(self._authority)),
            trust_env=False,
            timeout=30,
        )

    def kubeconfig(self, token: str = TOKEN, *, server: str | None = None) -> Body:
        """As JSON it is a file that every client reads. server: another address on 127.0.0.1 that leads here."""
        cluster = {"server": server or self.url, "certificate-authority": str(self._authority)}
        return {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def lightkube(self, token: str = TOKEN) -> AsyncClient:
        """A client as the operator has one."""
        return AsyncClient(
            config=KubeConfig.from_dict(self.kubeconfig(token)), field_manager="quire-operator", trust_env=False
        )

    def audited(self, namespace: str | None = None, *, user: str | None = None) -> list[Body]:
        """What was asked for in a namespace, or by one of USERS."""
        events = [json.loads(line) for line in self._audit.read_text().splitlines()]
        return [
            each
            for each in events
            if (namespace is None or each.get("objectRef", {}).get("namespace") == namespace)
            and (user is None or each["user"]["username"] == user)
        ]

    def get(self, path: str) -> Body | None:
        """None where there is no such object."""
        answer = self.client.get(path)
        return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def may(self, user: str, about: Body) -> bool:
        """Whether a user has the right to that (`namespace`, `group`, `resource`, `verb`); no namespace is all of them."""
        resource, _, subresource = about["resource"].partition("/")
        attributes = {**about, "resource": resource, "subresource": subresource}
        body = {"spec": {"user": user, "resourceAttributes": attributes}}
        answer = self.client.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", json=body)
        assert answer.status_code == 201, answer.text
        return bool(answer.json()["status"]["allowed"])

    def patch(self, path: str, body: Body) -> Body:
        """A merge patch, also of a status."""
        answer = self.client.patch(path, json=body, headers={"Content-Type": "application/merge-patch+json"})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def namespace(self, **marks: str) -> str:
        """A new one."""
        name = f"t-{uuid.uuid4().hex[:8]}"
        body = {"metadata": {"name": name, "labels": {key.replace("__", "/"): value for key, value in marks.items()}}}
        answer = self.create("/api/v1/namespaces", body, dry_run=False)
        assert answer.status_code == 201, answer.text
        return name

    def kubectl(self, *args: str) -> str:
        """Its standard output."""
        command = [str(self._kubectl), "--server", self.url, "--token", TOKEN]
        command += ["--certificate-authority", str(self._authority), *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def define(self, definition: Body) -> None:
        """Create a CustomResourceDefinition and wait until its kind is served."""
        answer = self.client.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=definition)
        assert answer.status_code == 201, answer.text
        plural, group = definition["metadata"]["name"].split(".", 1)
        version = definition["spec"]["versions"][0]["name"]

        def served() -> str | None:
            answer = self.client.get(f"/apis/{group}/{version}/namespaces/default/{plural}")
            return None if answer.status_code == 200 else answer.text

        until(f"{plural} is served", served, deadline_s=60)

    def create(self, path: str, body: Body, *, dry_run: bool = True) -> httpx.Response:
        """As `kubectl create`, with strict validation of fields."""
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return self.client.post(path, params=query, json=body)

    def replace(self, path: str, body: Mapping[str, Any]) -> httpx.Response:
        """A dry run of `kubectl replace`."""
        return self.client.put(path, params={"fieldValidation": "Strict", "dryRun": "All"}, json=body)


@contextmanager
def real_api(folder: Path) -> Iterator[RealApi]:
    """Start both programs in `folder`, end them afterwards."""
    etcd = shutil.which("etcd")
    if etcd is None:
        pytest.skip("etcd is not installed (the cluster harness's prerequisites bring it)")
    tools = ensure(Progress(), (KUBERNETES,))
    client, peer, secure = (_free_port() for _ in range(3))
    _accounts_key(folder)
    users = (f"{name},{name},{name}" for name in USERS)
    (folder / "tokens.csv").write_text("\n".join((f"{TOKEN},admin,1,system:masters", *users, "")))
    (folder / "audit.yaml").write_text(json.dumps(AUDIT))
    with ExitStack() as stack:
        start = [
            etcd,
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        ]
        stack.enter_context(_running(start, folder / "etcd.log"))
        server = [
            str(tools["kube-apiserver"]),
            f"--etcd-servers=http://127.0.0.1:{client}",
            f"--cert-dir={folder / 'certs'}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={secure}",
            "--endpoint-reconciler-type=none",
            "--service-cluster-ip-range=198.19.0.0/16",
            "--service-account-issuer=https://localhost",
            f"--service-account-key-file={folder / 'accounts.key'}",
            f"--service-account-signing-key-file={folder / 'accounts.key'}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            # Whom an aggregated API trusts; nothing is aggregated here.
            f"--requestheader-client-ca-file={self_signed(folder, 'front-proxy')[1]}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--disable-admission-plugins=ServiceAccount",
            "--feature-gates=ImageVolume=true",
            f"--audit-policy-file={folder / 'audit.yaml'}",
            f"--audit-log-path={folder / 'audit.log'}",
            "--audit-log-mode=blocking-strict",
        ]
        log = folder / "apiserver.log"
        process = stack.enter_context(_running(server, log))
        url = f"https://127.0.0.1:{secure}"
        until("a certificate", lambda: _absent(folder, process), deadline_s=120, log=log)
        api = RealApi(url, folder, tools["kubectl"])
        stack.callback(api.client.close)

        def ready() -> str | None:
            try:
                answer = api.client.get("/readyz")
            except httpx.HTTPError as error:
                return str(error)
            return None if answer.status_code == 200 else answer.text

        until("the API server is ready", ready, deadline_s=120, log=log)
        enforced = {"pod-security.kubernetes.io/enforce": "restricted"}
        answer = api.create("/api/v1/namespaces", {"metadata": {"name": "demo", "labels": enforced}}, dry_run=False)
        assert answer.status_code == 201, answer.text
        yield api


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _absent(folder: Path, process: subprocess.Popen[bytes]) -> str | None:
    assert process.poll() is None, (folder / "apiserver.log").read_text()[-2000:]
    return None if (folder / "certs" / "apiserver.crt").is_file() else "not yet"


def _accounts_key(folder: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "accounts.key").write_bytes(encoded)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
