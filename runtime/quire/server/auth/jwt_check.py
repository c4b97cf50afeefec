"""JSON web tokens as credentials (RFC 7519), with PyJWT; the extra `quire[jwt]`."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import jwt

from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.server.auth.jwks import RemoteKeys
from quire.server.auth.jwt_keys import ALGORITHMS, BadKeysError, VerifyKey, keys_of_file, matching
from quire.server.auth.keys import NAME, Principal
from quire.server.auth.rates import Limits
from quire.server.watched import Watched, read_text

_log = logging.getLogger(__name__)

MAX_TOKEN_BYTES = 16 << 10
MAX_FILE_BYTES = 1 << 20
MAX_TRIED = 16
"""Keys that one token is tried with at most."""


class Keys(Protocol):
    """Where keys come from."""

    async def find(self, algorithm: str, key_id: str | None) -> list[VerifyKey]:
        """Keys for a token; raises OverloadedError where none can be had now."""
        ...


class JwtCheck:
    """A token is good if one of the keys for its algorithm signed it, it has not expired, and audience and issuer are as the flags say.

    Who asks is called `jwt:` and the subject.
    """

    def __init__(self, config: ServeConfig, *, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        if config.jwt_keys is None:
            raise ValueError("--jwt-keys is not set")
        self._keys = _source(config.jwt_keys, clock)
        self._audience = config.jwt_audience
        self._issuer = config.jwt_issuer
        self._leeway_s = config.jwt_leeway
        self._limits = limits

    async def check(self, given: bytes) -> Principal | None:
        """Whose token it is; None where it is not a good one. Raises OverloadedError where that cannot be found out now."""
        if given.count(b".") != 2 or len(given) > MAX_TOKEN_BYTES:
            return None
        try:
            header = jwt.get_unverified_header(given)
        except (jwt.PyJWTError, ValueError):
            return None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS or "crit" in header:
            return None
        for key in (await self._keys.find(algorithm, header.get("kid")))[:MAX_TRIED]:
            try:
                claims = jwt.decode(
                    given,
                    key.key,
                    algorithms=[key.algorithm],
                    audience=self._audience,
                    issuer=self._issuer,
                    leeway=self._leeway_s,
                    options={
                        "require": ["exp", *(["aud"] if self._audience else []), *(["iss"] if self._issuer else [])],
                        "verify_aud": self._audience is not None,
                        "verify_iss": self._issuer is not None,
                    },
                )
            except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as exc:
                _log.debug("a token is refused: %s", type(exc).__name__)
                continue
            return Principal(_name(claims.get("sub")), self._limits)
        return None


class _FileKeys:
    """Keys of a file, read again when it changes."""

    def __init__(self, file: Path, clock: Callable[[], float]) -> None:
        def read() -> list[VerifyKey]:
            text = read_text(file, flag="--jwt-keys", max_bytes=MAX_FILE_BYTES)
            try:
                return keys_of_file(text)
            except BadKeysError as exc:
                raise ConfigError(f"--jwt-keys {file} cannot be used: {exc}") from None

        self._watched = Watched("the list of keys", [file], read, clock=clock)

    async def find(self, algorithm: str, key_id: str | None) -> list[VerifyKey]:
        return matching(self._watched.value, algorithm, key_id)


def _source(where: str, clock: Callable[[], float]) -> Keys:
    url = urlsplit(where)
    if url.scheme not in ("http", "https"):
        return _FileKeys(Path(where), clock)
    if not url.hostname:
        raise ConfigError(f"--jwt-keys must be a file or a URL with a host, got {where}")
    if url.scheme == "http" and url.hostname not in ("127.0.0.1", "::1", "localhost"):
        raise ConfigError(
            f"--jwt-keys must be fetched with https, got {where}: whoever can change the answer could let anybody in; or give a file"
        )
    return RemoteKeys(where, clock=clock)


def _name(subject: object) -> str:
    """For logs and for what is counted; different subjects have different names."""
    text = str(subject or "")
    if NAME.fullmatch(text):
        return f"jwt:{text}"
    return f"jwt:#{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
