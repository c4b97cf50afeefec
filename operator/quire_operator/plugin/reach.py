"""The person's hands: reads of LLMDeployments and what belongs to them, and the two writes, with the person's own rights."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx2
from lightkube import Client
from lightkube.config import client_adapter
from lightkube.core.exceptions import ApiError
from lightkube.types import PatchType

from quire_operator import labels
from quire_operator.cluster import is_missing, kinds
from quire_operator.errors import PluginError
from quire_operator.observation import Body, role_of
from quire_operator.plugin.config import Flags, choose
from quire_operator.plugin.failures import not_found
from quire_operator.spec import Deployment, parse

FIELD_MANAGER = "kubectl-llmd"
TIMEOUT_S = 20.0
LOOK_S = 0.3


class Reach:
    """One cluster, one namespace. Raises PluginError for names that are not there, otherwise what the client raises."""

    def __init__(self, flags: Flags) -> None:
        self.flags = flags
        self.config = choose(flags)
        self.namespace = flags.namespace or self.config.namespace
        direct = is_loopback(self.config.cluster.server)
        self._client = Client(
            config=self.config,
            timeout=httpx2.Timeout(TIMEOUT_S),
            field_manager=FIELD_MANAGER,
            trust_env=not direct,
        )
        endless = client_adapter.ConnectionParams(timeout=httpx2.Timeout(TIMEOUT_S, read=None), trust_env=not direct)
        self._streams = client_adapter.Client(self.config, endless)

    def close(self) -> None:
        self._client.close()
        self._streams.close()

    def get(self, name: str) -> Body:
        """The LLMDeployment of that name."""
        try:
            found: Body = self._client.get(kinds.LLMDeployment, name, namespace=self.namespace)
        except ApiError as error:
            if error.status.code != 404 or f'"{name}"' not in (error.status.message or ""):
                raise
            raise PluginError(not_found(name, self.namespace, self.names())) from None
        return found

    def parsed(self, name: str) -> Deployment:
        return parse(self.get(name))

    def every(self) -> list[Body]:
        """All LLMDeployments of the namespace, by name."""
        found: list[Body] = list(self._client.list(kinds.LLMDeployment, namespace=self.namespace, chunk_size=500))
        return sorted(found, key=lambda body: str(body["metadata"]["name"]))

    def names(self) -> list[str]:
        return [body["metadata"]["name"] for body in self.every()]

    def pods(self, name: str, revision: str | None = None) -> list[Body]:
        """Those of one LLMDeployment, or of one revision of it."""
        return self._children(kinds.Pod, name, revision)

    def workloads(self, name: str) -> list[Body]:
        """One of each revision. LeaderWorkerSets as far as the cluster has them and the person may see them."""
        sets = self._children(kinds.StatefulSet, name, None)
        try:
            groups = self._children(kinds.LeaderWorkerSet, name, None)
        except httpx2.HTTPStatusError as error:
            if not is_missing(error):
                raise
            groups = []
        return [
            *self._children(kinds.Deployment, name, None),
            *groups,
            *(each for each in sets if role_of(each) == labels.LEADER),
        ]

    def command(self, name: str, value: str) -> None:
        """Set the annotation that the operator obeys."""
        patch = {"metadata": {"annotations": {labels.ROLLOUT: value}}}
        self._client.patch(kinds.LLMDeployment, name, patch, namespace=self.namespace, patch_type=PatchType.MERGE)

    def scale(self, name: str, replicas: int) -> None:
        """Through /scale, as `kubectl scale` does."""
        patch = {"spec": {"replicas": replicas}}
        self._client.patch(kinds.LLMDeploymentScale, name, patch, namespace=self.namespace, patch_type=PatchType.MERGE)

    def until(self, name: str, holds: Callable[[Deployment], bool], *, timeout_s: float, late: str) -> Deployment:
        """Look until it holds. Raises PluginError with the sentence `late`."""
        end = time.monotonic() + timeout_s
        while True:
            found = self.parsed(name)
            if holds(found):
                return found
            if time.monotonic() >= end:
                raise PluginError(late)
            time.sleep(LOOK_S)

    def log(
        self, pod: str, container: str, *, follow: bool, previous: bool, tail: int | None, started: Callable[[], None]
    ) -> Iterator[str]:
        """Lines as they come; `started` is called when the API server has agreed. Raises ApiError, PluginError."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        query: dict[str, Any] = {"container": container, "follow": follow, "previous": previous}
        if tail is not None:
            query["tailLines"] = tail
        with self._streams.stream("GET", path, params=query) as answer:
            if answer.is_error:
                answer.read()
                if answer.headers.get("Content-Type") == "application/json":
                    raise ApiError(request=answer.request, response=answer)
                raise PluginError(f"the log of {pod} cannot be read: HTTP {answer.status_code} {answer.text.strip()}")
            started()
            yield from answer.iter_lines()

    def _children(self, kind: kinds.Kind, name: str, revision: str | None) -> list[Body]:
        marks: dict[str, Any] = {labels.DEPLOYMENT: name}
        if revision is not None:
            marks[labels.REVISION] = revision
        return list(self._client.list(kind, namespace=self.namespace, labels=marks, chunk_size=500))


def is_loopback(url: str) -> bool:
    """A proxy knows nothing of this machine's own addresses, whatever the environment says."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
