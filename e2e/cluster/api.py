"""The few calls to the API server that readiness needs; everything else goes through kubectl. Standard library only, so it starts fast."""

import http.client
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.errors import CommandError


class ApiClient:
    """One client certificate, one server. Not for tests: they use `handle`."""

    def __init__(self, address: str, pki: Path, timeout_s: float = 5.0) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        """Status and body. Raises OSError while the server cannot be reached."""
        connection = http.client.HTTPSConnection(self._address, 6443, timeout=self._timeout_s, context=self._tls)
        try:
            connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()

    def look(self, question: Callable[[], str | None]) -> str | None:
        """What `question` finds missing; a server that cannot answer just now is missing too."""
        try:
            return question()
        except (OSError, CommandError) as error:
            return str(error) or repr(error)

    def not_ready(self) -> str | None:
        """None when the server is ready, otherwise what it says."""
        try:
            status, body = self.request("GET", "/readyz")
        except OSError as error:
            return str(error)
        return None if status == 200 else f"/readyz answers {status}: {body.decode(errors='replace')[:200]}"

    def get(self, path: str) -> dict[str, Any] | None:
        """The object, or None when there is none."""
        status, body = self.request("GET", path)
        if status == 404:
            return None
        if status != 200:
            raise CommandError(f"GET {path} answers {status}: {body.decode(errors='replace')[:500]}")
        document: dict[str, Any] = json.loads(body)
        return document

    def create(self, path: str, document: dict[str, Any]) -> None:
        """Create the object; one that exists stays as it is."""
        status, body = self.request("POST", path, document)
        if status not in (200, 201, 409):
            raise CommandError(f"POST {path} answers {status}: {body.decode(errors='replace')[:500]}")

    def nodes_not_ready(self, count: int) -> str | None:
        """None when that many nodes are registered and Ready, otherwise what is missing."""
        listed = self.get("/api/v1/nodes") or {"items": []}
        ready = sorted(node["metadata"]["name"] for node in listed["items"] if is_ready(node))
        return (
            None if len(ready) == count else f"{len(ready)} of {count} nodes are Ready ({', '.join(ready) or 'none'})"
        )


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a Node object's condition Ready is True."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
