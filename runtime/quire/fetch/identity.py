"""Who asks a bucket: keys from the environment, or the workload's own identity, exchanged for keys that last an hour or so.

| variables (as AWS's programs have them) | how keys come |
|---|---|
| AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN | as they are |
| AWS_ROLE_ARN, AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_SESSION_NAME, AWS_ENDPOINT_URL_STS | the token's bearer takes on the role: AssumeRoleWithWebIdentity |
| AWS_CONTAINER_CREDENTIALS_FULL_URI, AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE | an agent on the node hands them out |

The first line that is there counts; without any, requests are anonymous. An exchange is a request of the same client as the download (same
proxy, same authorities), made inside its authentication. The token is read again for each: the kubelet renews the file. It goes where the
variable says and nowhere else: an exchange follows no redirect, and what is asked on the node itself goes through no proxy.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx

from quire.errors import ConfigError, ModelError
from quire.fetch.retry import TransientError, checked

EARLY = timedelta(minutes=5)
"""Keys are exchanged anew so long before they end: a request that is signed now may be looked at a little later."""

_XML = "{*}"
_AGAIN = frozenset({"IDPCommunicationError", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
"""Codes that come with status 400 and are worth another try."""
_NODE_HOSTS = frozenset({"169.254.170.2", "169.254.170.23", "fd00:ec2::23", "127.0.0.1", "::1", "localhost"})
"""Where an agent may be asked without TLS: nothing there leaves the node, unless a proxy is asked for it."""
_MARK = "quire.exchange"
"""An extension of the requests that exchange a token."""


def utc_now() -> datetime:
    """The clock of signatures and of keys that end."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Credentials:
    """Of an account; `session` only for temporary ones."""

    key_id: str
    secret: str
    session: str | None = None


class Identity(Protocol):
    """One way to come to keys."""

    @property
    def direct(self) -> str | None:
        """Host and port that are asked without a proxy."""

    def request(self) -> httpx.Request:
        """What to ask. Raises ModelError where the token cannot be read."""

    def keys(self, response: httpx.Response) -> tuple[Credentials, datetime | None]:
        """The answer's keys and when they end. Raises TransientError or ModelError."""


class Exchanged:
    """Keys of an identity, asked for when needed; of several threads one asks and the others wait for it."""

    def __init__(self, identity: Identity, now: Callable[[], datetime] = utc_now) -> None:
        self._identity = identity
        self._now = now
        self._lock = threading.Lock()
        self._held: Credentials | None = None
        self._ends: datetime | None = None

    def current(self, wanted: httpx.Request) -> Generator[httpx.Request, httpx.Response, Credentials]:
        """Yields the request of an exchange where one is due, as patient as the one that is `wanted`; returns the keys."""
        with self._lock:
            if self._held is None or (self._ends is not None and self._ends - self._now() < EARLY):
                request = self._identity.request()
                request.extensions = {**wanted.extensions, _MARK: True}
                response = yield request
                response.read()
                self._held, self._ends = self._identity.keys(response)
            return self._held

    @property
    def direct(self) -> str | None:
        """Host and port that are asked without a proxy."""
        return self._identity.direct


def refuse_redirect(response: httpx.Response) -> None:
    """A hook of the client: raises ModelError for an answer to an exchange that leads elsewhere, before the token goes there."""
    if _MARK in response.request.extensions and response.has_redirect_location:
        raise ModelError(
            f"{response.url.host} answered {response.status_code}: a redirect, which tokens do not follow; "
            "name the address that it leads to, if it is a good one"
        )


@dataclass(frozen=True)
class WebIdentity:
    """The bearer of a token that a cluster has signed takes on a role (AssumeRoleWithWebIdentity, unsigned)."""

    role: str
    token_file: Path
    endpoint: str
    session_name: str = "quire-fetch"

    @property
    def direct(self) -> str | None:
        return _on_node(self.endpoint)

    def request(self) -> httpx.Request:
        form = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": self.role,
            "RoleSessionName": self.session_name,
            "WebIdentityToken": _read(self.token_file, "AWS_WEB_IDENTITY_TOKEN_FILE"),
        }
        # In the body, not in the address: addresses end in logs.
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/xml"}
        return httpx.Request("POST", f"{self.endpoint.rstrip('/')}/", content=urlencode(form), headers=headers)

    def keys(self, response: httpx.Response) -> tuple[Credentials, datetime | None]:
        try:
            tree = ElementTree.fromstring(response.content)
        except ElementTree.ParseError:
            tree = ElementTree.Element("none")
        if (error := tree.find(f".//{_XML}Error")) is not None and response.status_code >= 400:
            code, said = error.findtext(f"{_XML}Code", ""), error.findtext(f"{_XML}Message", "").strip()
            told = f"{response.url.host} does not give the role {self.role}: {code}: {said}"
            if code in _AGAIN:
                raise TransientError(told)
            if response.status_code < 500:
                raise ModelError(f"{told}; check spec.model.s3.webIdentity and the role's trust policy")
        checked(response, lambda status: "check AWS_ENDPOINT_URL_STS, spec.model.s3.webIdentity.endpoint")
        found = tree.find(f".//{_XML}Credentials")
        if found is None:
            raise ModelError(
                f"{response.url.host} does not answer as STS does; check spec.model.s3.webIdentity.endpoint"
            )
        return _temporary(
            {name: found.findtext(f"{_XML}{name}") for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")},
            response,
        )  # fmt: skip


@dataclass(frozen=True)
class Agent:
    """An agent that hands out keys to whoever shows the token of its pod."""

    url: str
    token_file: Path | None

    @property
    def direct(self) -> str | None:
        return _on_node(self.url)

    def request(self) -> httpx.Request:
        headers = {"Accept": "application/json"}
        if self.token_file is not None:
            headers["Authorization"] = _read(self.token_file, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        return httpx.Request("GET", self.url, headers=headers)

    def keys(self, response: httpx.Response) -> tuple[Credentials, datetime | None]:
        checked(response, lambda status: "the agent has no keys for this pod's ServiceAccount")
        try:
            found = json.loads(response.content)
            names = {"AccessKeyId": "AccessKeyId", "SecretAccessKey": "SecretAccessKey", "SessionToken": "Token"}
            said = {name: found.get(theirs) for name, theirs in names.items()} | {"Expiration": found.get("Expiration")}
        except (ValueError, AttributeError) as exc:
            raise ModelError(f"{response.url.host} does not answer as an agent of credentials does") from exc
        return _temporary(said, response)


def identity_of(environ: Mapping[str, str], region: str) -> Credentials | Exchanged | None:
    """What the environment offers, as the table above. Raises ConfigError for half of something."""
    key_id, secret = environ.get("AWS_ACCESS_KEY_ID"), environ.get("AWS_SECRET_ACCESS_KEY")
    if key_id and secret:
        return Credentials(key_id, secret, environ.get("AWS_SESSION_TOKEN"))
    role, token = environ.get("AWS_ROLE_ARN"), environ.get("AWS_WEB_IDENTITY_TOKEN_FILE")
    if role and token:
        endpoint = environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.amazonaws.com"
        name = environ.get("AWS_ROLE_SESSION_NAME") or WebIdentity.session_name
        return Exchanged(WebIdentity(role, Path(token), endpoint, name))
    if role or token:
        missing = "AWS_WEB_IDENTITY_TOKEN_FILE" if role else "AWS_ROLE_ARN"
        raise ConfigError(
            f"{missing} is not set; a role is taken on with it and {'AWS_ROLE_ARN' if role else 'a token'}"
        )
    if url := environ.get("AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        where = httpx.URL(url)
        if where.scheme != "https" and where.host not in _NODE_HOSTS:
            raise ConfigError(
                f"AWS_CONTAINER_CREDENTIALS_FULL_URI must be https:// or an address of the node itself, got {url!r}"
            )
        file = environ.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        return Exchanged(Agent(url, Path(file) if file else None))
    return None


def _on_node(url: str) -> str | None:
    """Host and port of an address of the node itself."""
    where = httpx.URL(url)
    return where.netloc.decode() if where.host in _NODE_HOSTS else None


def _temporary(said: Mapping[str, object], response: httpx.Response) -> tuple[Credentials, datetime | None]:
    key_id, secret, session, ends = (
        said[name] for name in ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    )
    if not isinstance(key_id, str) or not isinstance(secret, str) or not key_id or not secret:
        raise ModelError(f"{response.url.host} answered without keys")
    if session is not None and not isinstance(session, str):
        raise ModelError(f"{response.url.host} answered with a session that is no text")
    try:
        until = datetime.fromisoformat(ends) if ends else None  # type: ignore[arg-type]
    except (ValueError, TypeError) as exc:
        raise ModelError(f"{response.url.host} says that its keys end {ends!r}, which is no time") from exc
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)  # as all times of this protocol are
    return Credentials(key_id, secret, session), until


def _read(file: Path, variable: str) -> str:
    try:
        return file.read_text().strip()
    except OSError as exc:
        raise ModelError(f"{variable} {file} cannot be read: {exc.strerror or exc}") from exc
