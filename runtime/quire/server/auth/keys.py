"""API keys and the file that holds many of them.

A line of the file is a name, the hash of the key, and limits where they differ from the flags':

    alice  sha256:5e88...  requests_per_minute=60 tokens_per_minute=100000 max_concurrent=4

`quire key new` makes a key with its line, `quire key hash` the line of a key that exists. A key itself is refused in the file, so that
none lies on a disk. SHA-256 alone is enough of a hash since a key is 256 random bits; a short one that a person thought out would not be.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from quire.errors import ConfigError
from quire.server.auth.rates import NO_LIMITS, Limits

PREFIX = "qk_"
MAX_KEYS = 10_000
"""Reading them again must not hold answers up: so many take about 0.15 s."""
NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")
NAME_BOUND = "up to 64 of A-Z a-z 0-9 . _ @ + -, and not everybody or key-N, which are taken"
EVERYBODY = "everybody"
"""Who asks where neither keys nor tokens are configured; the keys of `--api-key` are key-1, key-2, ..."""
_TAKEN = re.compile(rf"{EVERYBODY}|key-[0-9]+")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_LIMIT_NAMES = frozenset(Limits.__dataclass_fields__)


@dataclass(frozen=True)
class Principal:
    """Who asks. name: for logs and for what is counted; never a key."""

    name: str
    limits: Limits = NO_LIMITS


@dataclass(frozen=True)
class Key:
    """An entry: whose it is, and the SHA-256 of the key."""

    digest: bytes
    principal: Principal


class KeySet:
    """Keys by what they hash to.

    The table is keyed with a secret of this process. So the time of a look-up says nothing about the keys, however many there are,
    and none of it depends on where a given key differs.
    """

    def __init__(self, keys: Iterable[Key]) -> None:
        self._secret = secrets.token_bytes(32)
        self._table = {self._blind(key.digest): key for key in keys}

    def __len__(self) -> int:
        return len(self._table)

    def find(self, given: bytes) -> Principal | None:
        """Whose key this is."""
        digest = hashlib.sha256(given).digest()
        key = self._table.get(self._blind(digest))
        return key.principal if key is not None and hmac.compare_digest(key.digest, digest) else None

    def _blind(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


def may_be_named(name: str) -> bool:
    """Whether a line of the file may have it: `NAME_BOUND`."""
    return NAME.fullmatch(name) is not None and _TAKEN.fullmatch(name) is None


def new_key() -> str:
    """A key of 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes:
    """The hash that is kept."""
    return hashlib.sha256(key.encode()).digest()


def line_of(name: str, key: str) -> str:
    """The line of the file for a key."""
    return f"{name}  sha256:{digest_of(key).hex()}"


def keys_of(text: str, *, source: str, defaults: Limits) -> list[Key]:
    """The keys of a file's text; defaults: limits of a key whose line sets none. Raises ConfigError with the number of the line,
    never with its words, since they may be a key."""
    keys: list[Key] = []
    seen: dict[str | bytes, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"{source}, line {number}"
        if len(keys) == MAX_KEYS:
            raise ConfigError(f"{where}: there are more than {MAX_KEYS} keys")
        key = _key(words, where, defaults)
        for what, value in (("name", key.principal.name), ("hash", key.digest)):
            if value in seen:
                raise ConfigError(f"{where}: it has the {what} of line {seen[value]}")
            seen[value] = number
        keys.append(key)
    return keys


def _key(words: list[str], where: str, defaults: Limits) -> Key:
    name, *rest = words
    if not may_be_named(name):
        raise ConfigError(f"{where}: a line begins with a name of {NAME_BOUND}")
    found = _DIGEST.fullmatch(rest[0]) if rest else None
    if found is None:
        raise ConfigError(
            f"{where}: after the name comes sha256: and 64 digits 0-9 a-f, the hash of the key; `quire key hash {name}` makes the line"
        )
    limits = defaults
    for word in rest[1:]:
        limit, _, value = word.partition("=")
        if limit not in _LIMIT_NAMES or not re.fullmatch(r"[0-9]{1,15}", value):
            known = ", ".join(f"{known}=N" for known in Limits.__dataclass_fields__)
            raise ConfigError(
                f"{where}: after the hash come only {known}, with N an integer at least 0, where 0 is no limit"
            )
        limits = replace(limits, **{limit: int(value) or None})
    return Key(bytes.fromhex(found[1]), Principal(name, limits))
