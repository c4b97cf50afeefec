"""Which cluster, as whom, in which namespace: kubeconfig files as kubectl reads them. Reads files, nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
LISTS = ("clusters", "contexts", "users")


@dataclass(frozen=True)
class Flags:
    """kubectl's own; None where not given."""

    namespace: str | None = None
    context: str | None = None
    kubeconfig: str | None = None

    def over(self, general: Flags) -> Flags:
        """Those given after the command's name win over those before it."""
        return replace(
            self,
            namespace=self.namespace or general.namespace,
            context=self.context or general.context,
            kubeconfig=self.kubeconfig or general.kubeconfig,
        )

    def for_kubectl(self) -> list[str]:
        """The same cluster for a kubectl of our own."""
        given = (("--context", self.context), ("--kubeconfig", self.kubeconfig))
        return [f"{flag}={value}" for flag, value in given if value is not None]


def choose(flags: Flags, environ: Mapping[str, str] = os.environ) -> SingleConfig:
    """--kubeconfig, $KUBECONFIG (several files are merged, the first one wins), ~/.kube/config, the pod's service account.

    Raises ConfigError.
    """
    named = flags.kubeconfig or environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [Path(each).expanduser() for each in ([named] if flags.kubeconfig else named.split(os.pathsep)) if each]
    there = [file for file in files if file.is_file()]
    if not there:
        if flags.kubeconfig is None and flags.context is None and "KUBERNETES_SERVICE_HOST" in environ:
            return _whole(KubeConfig.from_service_account(), None)
        raise ConfigError(f"{named} is not there; --kubeconfig or KUBECONFIG names another file")
    try:
        return _whole(KubeConfig.from_dict(merged(there), fname=there[0]), flags.context)
    except (KeyError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{named} cannot be used: {error!r}") from None


def merged(files: list[Path]) -> dict[str, Any]:
    """One kubeconfig out of several; an entry of an earlier file wins. Paths in it become absolute."""
    found: dict[str, Any] = {each: [] for each in LISTS}
    for file in files:
        content = yaml.safe_load(file.read_text()) or {}
        found.setdefault("current-context", content.get("current-context") or None)
        found["current-context"] = found["current-context"] or content.get("current-context") or None
        for each in LISTS:
            known = {entry["name"] for entry in found[each]}
            entries = [entry for entry in content.get(each) or () if entry["name"] not in known]
            found[each] += [_absolute(entry, each[:-1], file.parent) for entry in entries]
    return found


def _absolute(entry: Mapping[str, Any], kind: str, folder: Path) -> dict[str, Any]:
    inner = dict(entry.get(kind) or {})
    for path in PATHS:
        if inner.get(path):
            inner[path] = str(folder.absolute() / inner[path])
    return {"name": entry["name"], kind: inner}


def _whole(config: KubeConfig, context: str | None) -> SingleConfig:
    chosen = config.get(context)
    if chosen is None:
        raise ConfigError("it has no current context; --context names one")
    return chosen if chosen.user is not None else chosen._replace(user=User())
