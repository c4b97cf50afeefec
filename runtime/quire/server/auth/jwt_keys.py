"""Keys that JSON web tokens are verified with, from a JWKS, a PEM file or a file with a secret.

Each key has exactly one algorithm, which follows from what the key is; a token's own header never chooses. So a public key can not be
taken for a secret (algorithm confusion), and `none` is no algorithm.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jwt
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

ALGORITHMS = frozenset({"HS256", "RS256", "ES256"})
MAX_KEYS = 100
MIN_SECRET_BYTES = 32
MIN_RSA_BITS = 2048


@dataclass(frozen=True)
class VerifyKey:
    """key_id: None matches tokens with any. key: as PyJWT takes it."""

    algorithm: str
    key: Any
    key_id: str | None = None


class BadKeysError(Exception):
    """What was given holds no key that can be used; the message says why."""


def matching(keys: Sequence[VerifyKey], algorithm: str, key_id: str | None) -> list[VerifyKey]:
    """Those a token with such a header may be verified with."""
    return [
        key for key in keys if key.algorithm == algorithm and (None in (key_id, key.key_id) or key.key_id == key_id)
    ]


def keys_of_file(text: str) -> list[VerifyKey]:
    """A JWKS or one JWK (`{`), a public key or a certificate in PEM, or a secret. Raises BadKeysError."""
    text = text.strip()
    if text.startswith(("{", "[")):
        return keys_of_jwks(text, secrets=True)
    if "-----BEGIN" in text or text.startswith("ssh-"):  # a secret never looks so: no broken public key becomes one
        return [_public(_loaded(text))]
    if _is_bare(text):
        raise BadKeysError(
            "it is a public key or certificate without its lines -----BEGIN … and -----END …: put them around it"
        )
    return [VerifyKey("HS256", _secret(text.encode()))]


def keys_of_jwks(text: str | bytes, *, secrets: bool) -> list[VerifyKey]:
    """The keys of a set (RFC 7517) that verify RS256, ES256 or, where secrets may be in it, HS256; others are left out. Raises
    BadKeysError where none is left."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise BadKeysError("it is not valid JSON") from None
    entries = document.get("keys", [document]) if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise BadKeysError("it is no JWKS: an object with a list `keys`")
    keys = [key for entry in entries[:MAX_KEYS] if (key := _entry(entry, secrets)) is not None]
    if not keys:
        raise BadKeysError(f"it has no key for {', '.join(sorted(ALGORITHMS))}")
    return keys


def _entry(entry: object, secrets: bool) -> VerifyKey | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or (entry.get("kty") == "oct" and not secrets):
        return None
    key_id = entry.get("kid")
    try:
        raw = jwt.PyJWK.from_dict({name: value for name, value in entry.items() if name != "alg"}).key
        key = VerifyKey("HS256", _secret(raw)) if isinstance(raw, bytes) else _public(raw)
    except (jwt.PyJWTError, BadKeysError, ValueError, TypeError):
        return None
    if entry.get("alg", key.algorithm) != key.algorithm or not isinstance(key_id, str | None):
        return None
    return VerifyKey(key.algorithm, key.key, key_id)


def _public(key: object) -> VerifyKey:
    if isinstance(key, RSAPublicKey):
        if key.key_size < MIN_RSA_BITS:
            raise BadKeysError(f"an RSA key must have at least {MIN_RSA_BITS} bits, got {key.key_size}")
        return VerifyKey("RS256", key)
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return VerifyKey("ES256", key)
    raise BadKeysError("it must be the public part of an RSA or a P-256 key")


def _loaded(text: str) -> object:
    try:
        if "-----BEGIN CERTIFICATE" in text:
            return x509.load_pem_x509_certificate(text.encode()).public_key()
        return load_pem_public_key(text.encode())
    except ValueError:
        raise BadKeysError("it is no public key in PEM form") from None


def _is_bare(text: str) -> bool:
    """Whether it is what stands between the lines of a PEM file, as issuers show it: anybody may know that, so it is no secret."""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return False
    for load in (load_der_public_key, x509.load_der_x509_certificate):
        try:
            load(data)
        except (ValueError, UnsupportedAlgorithm):
            continue
        return True
    return False


def _secret(secret: bytes) -> bytes:
    if len(secret) < MIN_SECRET_BYTES:
        raise BadKeysError(f"a secret must have at least {MIN_SECRET_BYTES} bytes, got {len(secret)}")
    return secret
