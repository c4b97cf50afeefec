"""The keys of a JWKS address: fetched, kept, fetched again.

Fetched when the first token comes, again after `REFRESH_S` beside the requests, and for a key id that nobody knows, once in `RETRY_S`
at most. All who wait share one fetch, which has a deadline. While the address fails the keys stay good for `MAX_STALE_S`; without
any, tokens cannot be checked and are refused with 503.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx

from quire.errors import OverloadedError
from quire.server.auth.jwt_keys import BadKeysError, VerifyKey, keys_of_jwks, matching

_log = logging.getLogger(__name__)

DEADLINE_S = 5.0
REFRESH_S = 300.0
RETRY_S = 10.0
MAX_STALE_S = 24 * 3600.0
MAX_BYTES = 1 << 20


class RemoteKeys:
    """See the module."""

    def __init__(self, url: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        # Without TLS only this machine is asked (see `jwt_check`): a proxy between could put its own keys in.
        self._may_use_proxy = urlsplit(url).scheme == "https"
        self._verify = httpx.create_ssl_context()  # takes a while, at the start rather than beside requests
        self._keys: list[VerifyKey] = []
        self._fetched_s = 0.0
        self._tried_s: float | None = None
        self._fetch: asyncio.Task[None] | None = None

    async def find(self, algorithm: str, key_id: str | None) -> list[VerifyKey]:
        """Keys for a token; raises OverloadedError where none can be had now."""
        now_s = self._clock()
        if found := matching(self._current(now_s), algorithm, key_id):
            if now_s - self._fetched_s >= REFRESH_S:
                self._start(now_s)
            return found
        self._start(now_s)
        if self._fetch is not None:
            await asyncio.shield(self._fetch)
        if not (keys := self._current(self._clock())):
            raise OverloadedError(
                "tokens cannot be checked now, for their keys cannot be fetched",
                reason="auth_unavailable",
                retry_after_s=5,
            )
        return matching(keys, algorithm, key_id)

    def _current(self, now_s: float) -> list[VerifyKey]:
        return self._keys if now_s - self._fetched_s < MAX_STALE_S else []

    def _start(self, now_s: float) -> None:
        """Fetch, unless that is being done or was tried just now."""
        if self._fetch is not None or (self._tried_s is not None and now_s - self._tried_s < RETRY_S):
            return
        self._tried_s = now_s
        self._fetch = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                text = await self._get()
            self._keys = keys_of_jwks(text, secrets=False)
            self._fetched_s = self._clock()
        except TimeoutError:
            _log.error("--jwt-keys %s did not answer within %g s", self._url, DEADLINE_S)
        except Exception as exc:  # noqa: BLE001  (whatever it is, tokens cannot be checked)
            _log.error("--jwt-keys %s cannot be used: %s", self._url, str(exc) or type(exc).__name__)
        finally:
            self._fetch = None

    async def _get(self) -> bytes:
        body = b""
        async with (
            httpx.AsyncClient(timeout=DEADLINE_S, verify=self._verify, trust_env=self._may_use_proxy) as client,
            client.stream("GET", self._url, headers={"accept": "application/json"}) as answer,
        ):
            if answer.status_code != 200:
                raise BadKeysError(f"it answers {answer.status_code}")
            async for part in answer.aiter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise BadKeysError(f"it has more than {MAX_BYTES} bytes")
        return body
