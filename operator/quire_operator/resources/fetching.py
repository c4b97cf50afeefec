"""The container that runs `quire fetch`: in front of the engine, and in the Job of a ModelCache. Pure.

Tokens and keys come by reference to a Secret that the user named; the engine sees none, but for a hub's where it asks the hub itself (`hub_env`).
"""

from __future__ import annotations

import hashlib
from typing import Any

from quire_operator.api import Download, Origin, WebIdentity
from quire_operator.resources.defaults import PodDefaults
from quire_operator.resources.security import container_security

NAME = "fetch"
MOUNT = "/mnt/model"
CA_MOUNT = "/etc/quire/ca"
IDENTITY_MOUNT = "/var/run/secrets/quire.dev/identity"
IDENTITY_S = 3600
"""How long a projected token is good; the kubelet renews it when four fifths are over."""
JITTER_S = 5
"""Pods that start together do not ask the hub together."""

_AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def folder_of(origin: Origin, *, code: bool = False) -> str:
    """Folder below the mount for these files and no others: models and revisions share a volume without meeting. `code` as below."""
    identity = [origin.source, origin.revision if origin.scheme == "hf" else "", origin.sha256 or ""]
    if code:
        identity.append("code")
    return hashlib.sha256("\n".join(identity).encode()).hexdigest()[:12]


def fetch_container(
    origin: Origin, folder: str, image: str, defaults: PodDefaults, *, code: bool = False
) -> dict[str, Any]:
    """Fills `folder`, a path below MOUNT, from an hf://, s3:// or https:// source. `code`: Python files too."""
    download = origin.download or Download()
    args = ["fetch", origin.source, f"--to={folder}"]
    if origin.scheme == "hf":
        args.append(f"--revision={origin.revision}")
    if endpoint := _endpoint(origin, defaults):
        args.append(f"--endpoint={endpoint}")
    if origin.scheme == "s3" and origin.s3 is not None:
        args.append(f"--region={origin.s3.region}")
    if origin.sha256 is not None:
        args.append(f"--sha256={origin.sha256}")
    args += [f"--parallel={download.parallel}", f"--attempts={download.attempts}", f"--jitter={JITTER_S}"]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "model", "mountPath": MOUNT}]
    if authority := _authority(download, defaults):
        args.append(f"--ca-bundle={CA_MOUNT}/{authority[1]}")
        mounts.append({"name": "ca", "mountPath": CA_MOUNT, "readOnly": True})
    if _web_identity(origin) is not None:
        mounts.append({"name": "identity", "mountPath": IDENTITY_MOUNT, "readOnly": True})
    if download.offline:
        args.append("--offline")
    if code:
        args.append("--code")
    return {
        "name": NAME,
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "args": args,
        "env": _env(origin, download, defaults),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": mounts,
    }


def wait_container(folder: str, timeout_s: int, image: str, defaults: PodDefaults) -> dict[str, Any]:
    """Waits until a ModelCache has filled `folder`; the pod needs no right to look at the ModelCache."""
    return {
        "name": NAME,
        "image": image,
        "imagePullPolicy": defaults.image_pull_policy,
        "args": ["fetch-wait", folder, f"--timeout={timeout_s}"],
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "model", "mountPath": MOUNT, "readOnly": True},
        ],
    }


def fetch_volumes(origin: Origin, defaults: PodDefaults) -> list[dict[str, Any]]:
    """What the container needs beside `tmp` and `model`."""
    volumes: list[dict[str, Any]] = []
    if authority := _authority(origin.download or Download(), defaults):
        volumes.append({"name": "ca", "configMap": {"name": authority[0]}})
    if (identity := _web_identity(origin)) is not None:
        token = {"path": "token", "audience": identity.audience, "expirationSeconds": IDENTITY_S}
        volumes.append({"name": "identity", "projected": {"sources": [{"serviceAccountToken": token}]}})
    return volumes


def hub_env(origin: Origin, defaults: PodDefaults) -> list[dict[str, Any]]:
    """For a program that asks the hub itself."""
    endpoint = _endpoint(origin, defaults)
    env: list[dict[str, Any]] = [{"name": "HF_ENDPOINT", "value": endpoint}] if endpoint else []
    return env + _env(origin, origin.download or Download(), defaults)[1:]


def _endpoint(origin: Origin, defaults: PodDefaults) -> str:
    return origin.endpoint or (defaults.hub_endpoint if origin.scheme == "hf" else "")


def _authority(download: Download, defaults: PodDefaults) -> tuple[str, str] | None:
    """ConfigMap and key."""
    if download.ca_bundle is not None:
        return download.ca_bundle.name, download.ca_bundle.key
    return (defaults.ca_config_map, "ca.crt") if defaults.ca_config_map else None


def _web_identity(origin: Origin) -> WebIdentity | None:
    return origin.s3.web_identity if origin.s3 is not None else None


def _env(origin: Origin, download: Download, defaults: PodDefaults) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = [{"name": "HOME", "value": "/tmp"}]
    if proxy := download.https_proxy or defaults.https_proxy:
        env.append({"name": "HTTPS_PROXY", "value": proxy})
    if no_proxy := download.no_proxy or defaults.no_proxy:
        env.append({"name": "NO_PROXY", "value": no_proxy})
    if origin.token_secret_ref is not None:
        variable = "HF_TOKEN" if origin.scheme == "hf" else "QUIRE_FETCH_TOKEN"
        env.append(_secret(variable, origin.token_secret_ref.name, origin.token_secret_ref.key))
    if origin.s3 is not None and origin.s3.credentials_secret_ref is not None:
        name = origin.s3.credentials_secret_ref.name
        env += [_secret(key, name, key, optional=key == "AWS_SESSION_TOKEN") for key in _AWS]
    if (identity := _web_identity(origin)) is not None:
        env += [
            {"name": "AWS_ROLE_ARN", "value": identity.role_arn},
            {"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": f"{IDENTITY_MOUNT}/token"},
        ]
        if identity.endpoint is not None:
            env.append({"name": "AWS_ENDPOINT_URL_STS", "value": identity.endpoint})
    return env


def _secret(variable: str, name: str, key: str, *, optional: bool = False) -> dict[str, Any]:
    reference: dict[str, Any] = {"name": name, "key": key}
    if optional:
        reference["optional"] = True
    return {"name": variable, "valueFrom": {"secretKeyRef": reference}}
