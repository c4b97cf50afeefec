"""What the edge asks before a request goes on: is it let in, as whom, and may it be now.

A key comes as `Authorization: Bearer KEY` or as `x-api-key: KEY`, where clients of Anthropic put it. Where neither keys nor tokens are
configured everybody is let in, all as one principal for the limits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from starlette.datastructures import Headers

from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.server.auth.keyring import Keyring
from quire.server.auth.keys import EVERYBODY, Principal
from quire.server.auth.rates import Lease, Limits, Rates, Refusal, headers_of

HEALTH_PATHS = frozenset({"/health", "/health/live", "/health/ready"})
METRICS_PATH = "/metrics"


class Checker(Protocol):
    """A kind of credential."""

    async def check(self, given: bytes) -> Principal | None:
        """Whose it is; None where it is not a good one. Raises OverloadedError where that cannot be found out now."""
        ...


class Guard:
    """See the module. public: paths of what is no secret. `open_paths` need no key: these, and what probes and scrapers ask, which have
    none."""

    def __init__(
        self, config: ServeConfig, *, public: Iterable[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = Limits(
            config.requests_per_minute or None, config.tokens_per_minute or None, config.max_concurrent or None
        )
        self._keys: Keyring | None = None
        if config.api_key or config.api_key_file is not None:
            self._keys = Keyring(config.api_key, config.api_key_file, limits=self._limits, clock=clock)
        self._tokens = _token_check(config, self._limits, clock)
        self._rates = Rates()
        self._clock = clock
        self.open_paths = HEALTH_PATHS.union(public, () if config.metrics_auth else (METRICS_PATH,))

    async def principal(self, headers: Headers) -> Principal | None:
        """Who asks; None without a good key or token. Raises OverloadedError where that cannot be found out now."""
        keys, tokens = self._keys, self._tokens
        if keys is None and tokens is None:
            return Principal(EVERYBODY, self._limits)
        credentials = [given for given in _credentials(headers) if given]
        if keys is not None:
            for given in credentials:
                if (found := keys.find(given)) is not None:
                    return found
        if tokens is not None:  # after all keys: this may have to wait, and may fail
            for given in credentials:
                if (found := await tokens.check(given)) is not None:
                    return found
        return None

    def begin(self, principal: Principal) -> Lease | Refusal:
        """Let a request of theirs in, or say why not now; `end` must follow."""
        return self._rates.begin(principal.name, principal.limits, self._clock())

    def end(self, lease: Lease) -> None:
        self._rates.end(lease, self._clock())

    def headers(self, principal: Principal) -> dict[str, str]:
        """`x-ratelimit-*` for somebody who was refused."""
        return headers_of(self._rates.meters(principal.name, principal.limits, self._clock()))


def _token_check(config: ServeConfig, limits: Limits, clock: Callable[[], float]) -> Checker | None:
    if config.jwt_keys is None:
        for flag, value in (("--jwt-audience", config.jwt_audience), ("--jwt-issuer", config.jwt_issuer)):
            if value is not None:
                raise ConfigError(f"{flag} needs --jwt-keys")
        return None
    try:
        from quire.server.auth.jwt_check import JwtCheck  # PyJWT and cryptography: an extra
    except ModuleNotFoundError as exc:
        raise ConfigError(f"--jwt-keys needs the package {exc.name}: pip install 'quire[jwt]'") from None
    return JwtCheck(config, limits=limits, clock=clock)


def _credentials(headers: Headers) -> Iterator[bytes]:
    """What the request brings, as the bytes that came."""
    for value in headers.getlist("authorization"):
        scheme, _, key = value.partition(" ")
        if scheme.lower() == "bearer":
            yield key.strip().encode("latin-1")
    for value in headers.getlist("x-api-key"):
        yield value.strip().encode("latin-1")
