"""JSON web tokens: good and bad ones, keys from files and addresses, and addresses that fail, hang, or lie."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from live_server import Live, ids_of, live_server
from quire.config import ServeConfig
from quire.errors import ConfigError, OverloadedError
from quire.server.auth.guard import Guard
from scripted_engine import ScriptedEngine

jwt = pytest.importorskip("jwt", reason="PyJWT is an extra")
from quire.server.auth import jwks
from quire.server.auth.jwt_check import JwtCheck
from quire.server.auth.jwt_keys import BadKeysError, keys_of_file, keys_of_jwks, matching
from quire.server.auth.rates import Limits

RSA = rsa.generate_private_key(65537, 2048)
OTHER_RSA = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
SECRET = "s" * 32
PRIVATE = {"RS256": RSA, "ES256": EC, "HS256": SECRET}


def pem(key: Any) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return str(key.public_key().public_bytes(serialization.Encoding.PEM, form).decode())


def bare(text: str) -> str:
    """What stands between the first line and the last."""
    return "\n".join(text.splitlines()[1:-1])


def certificate(key: Any) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1)).sign(key, SHA256())
    return made.public_bytes(serialization.Encoding.PEM).decode()


def jwk(key: Any, kid: str | None, **fields: Any) -> dict[str, Any]:
    algorithm = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else jwt.algorithms.ECAlgorithm
    made = {**json.loads(algorithm.to_jwk(key.public_key())), **fields}
    return made if kid is None else {**made, "kid": kid}


def set_of(*keys: dict[str, Any]) -> str:
    return json.dumps({"keys": keys})


def token(algorithm: str = "RS256", *, key: Any = None, headers: dict[str, Any] | None = None, **claims: Any) -> bytes:
    body = {"sub": "alice", "exp": time.time() + 1000, **claims}
    made = jwt.encode(
        {name: value for name, value in body.items() if value is not None},
        PRIVATE[algorithm] if key is None else key,
        algorithm=algorithm,
        headers=headers,
    )
    return str(made).encode()


def checker(keys: Path | str, clock: Any = time.monotonic, **flags: Any) -> JwtCheck:
    return JwtCheck(ServeConfig(jwt_keys=str(keys), **flags), limits=Limits(max_concurrent=5), clock=clock)


def written(folder: Path, text: str) -> Path:
    (folder / "keys").write_text(text)
    return folder / "keys"


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "HS256"])
async def test_a_good_token_of_each_algorithm(tmp_path: Path, algorithm: str) -> None:
    key = PRIVATE[algorithm]
    check = checker(written(tmp_path, key if isinstance(key, str) else pem(key)))
    found = await check.check(token(algorithm))
    assert found is not None and (found.name, found.limits) == ("jwt:alice", Limits(max_concurrent=5))
    for subject, name in (("a b", "jwt:#"), (None, "jwt:#")):
        other = await check.check(token(algorithm, sub=subject))
        assert other is not None and other.name.startswith(name)


@pytest.mark.parametrize(
    ("claims", "good"),
    [
        ({}, True),
        ({"aud": ["x", "quire"]}, True),
        ({"exp": -20}, True),
        ({"exp": -40}, False),
        ({"exp": None}, False),
        ({"exp": "soon"}, False),
        ({"exp": 10**30}, True),
        ({"exp": 1e400}, False),
        ({"nbf": 20}, True),
        ({"nbf": 1000}, False),
        ({"aud": "other"}, False),
        ({"aud": None}, False),
        ({"iss": "https://other.example"}, False),
        ({"iss": None}, False),
    ],
)
async def test_claims(tmp_path: Path, claims: dict[str, Any], good: bool) -> None:
    check = checker(written(tmp_path, pem(RSA)), jwt_audience="quire", jwt_issuer="https://issuer.example")
    near = {
        name: time.time() + value for name, value in claims.items() if isinstance(value, int) and abs(value) < 10_000
    }
    given = token(**{"aud": "quire", "iss": "https://issuer.example", **claims, **near})
    assert ((await check.check(given)) is not None) == good


async def test_no_algorithm_but_that_of_the_key(tmp_path: Path) -> None:
    """The public key as a secret, no signature, another family: none of it is good."""
    check = checker(written(tmp_path, pem(RSA)))
    header, payload, signature = token().split(b".")

    def encoded(fields: dict[str, Any]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(fields).encode()).rstrip(b"=")

    import hashlib
    import hmac

    forged = encoded({"alg": "HS256", "typ": "JWT"}) + b"." + payload
    mac = base64.urlsafe_b64encode(hmac.digest(pem(RSA).encode(), forged, hashlib.sha256)).rstrip(b"=")
    for bad in (
        forged + b"." + mac,
        encoded({"alg": "none"}) + b"." + payload + b".",
        encoded({"alg": "None"}) + b"." + payload + b"." + signature,
        encoded({"alg": "RS512"}) + b"." + payload + b"." + signature,
        encoded({"alg": ["RS256"]}) + b"." + payload + b"." + signature,
        encoded({"alg": "RS256", "crit": ["exp"]}) + b"." + payload + b"." + signature,
        encoded({"alg": "RS256", "kid": 7}) + b"." + payload + b"." + signature,
        header + b"." + encoded({"sub": "root", "exp": time.time() + 1000}) + b"." + signature,
        token(key=OTHER_RSA),
        token("HS256"),
        token("ES256"),
        b"..",
        b"a.b.c",
        b"\xff.\xff.\xff",
        b"x" * 20_000 + b"..",
        header + b"." + payload,
    ):
        assert await check.check(bad) is None, bad[:60]
    assert await check.check(token()) is not None


def test_what_is_no_key(tmp_path: Path) -> None:
    private = RSA.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    small = rsa.generate_private_key(65537, 1024)
    p521 = ec.generate_private_key(ec.SECP521R1())
    for text, words in [
        ("short", "at least 32 bytes, got 5"),
        (pem(RSA)[:80], "no public key in PEM form"),
        (private, "no public key in PEM form"),
        (pem(small), "at least 2048 bits, got 1024"),
        (pem(p521), "RSA or a P-256 key"),
        ("{", "not valid JSON"),
        ('{"keys": 1}', "no JWKS"),
        # Anybody may know these: as secrets they would let everybody in.
        (json.dumps([jwk(RSA, "a")]), "no JWKS: an object with a list `keys`"),
        *((bare(pem(key)), "without its lines -----BEGIN") for key in (RSA, EC, small)),
        ("\n" + bare(pem(RSA)).replace("\n", "\r\n") + "\n", "without its lines -----BEGIN"),
        (bare(certificate(RSA)), "without its lines -----BEGIN"),
        ('{"keys": []}', "no key for ES256, HS256, RS256"),
        (set_of(jwk(RSA, "a", use="enc"), jwk(RSA, "b", alg="RS512"), jwk(p521, "c"), {"kty": "x"}), "no key for"),
    ]:
        with pytest.raises(BadKeysError, match=words):
            keys_of_file(text)
    assert keys_of_file(base64.b64encode(bytes(range(48))).decode())[0].algorithm == "HS256"
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="), "kid": "s"}
    assert [key.algorithm for key in keys_of_jwks(set_of(secret, jwk(EC, "e")), secrets=True)] == ["HS256", "ES256"]
    assert [key.algorithm for key in keys_of_jwks(set_of(secret, jwk(EC, "e")), secrets=False)] == ["ES256"]
    for value, words in [
        ("http://issuer.example/jwks", "fetched with https"),
        ("https:///x", "a URL with a host"),
        (str(tmp_path / "absent"), "cannot be read: No such file"),
    ]:
        with pytest.raises(ConfigError, match=f"--jwt-keys.*{words}"):
            checker(value)
    with pytest.raises(ConfigError, match="--jwt-audience needs --jwt-keys"):
        Guard(ServeConfig(jwt_audience="x"))


async def test_keys_without_tls_come_through_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One between could put its own keys in."""
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with issuer() as source, issuer() as between:
        source.body, between.body = set_of(jwk(RSA, "a")), set_of(jwk(OTHER_RSA, "a"))
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, between.url)
        check = checker(source.url)
        assert await check.check(token(key=OTHER_RSA)) is None
        assert await check.check(token()) is not None
        assert (source.num_requests, between.num_requests) == (1, 0)


async def test_secrets_of_an_address_are_no_keys() -> None:
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="), "kid": "s"}
    async with issuer() as source:
        source.body = set_of(secret, jwk(EC, "e"))
        check = checker(source.url)
        assert await check.check(token("HS256", headers={"kid": "s"})) is None
        assert await check.check(token("ES256", headers={"kid": "e"})) is not None


def test_keys_for_a_token_are_of_its_algorithm_and_id() -> None:
    keys = keys_of_jwks(set_of(jwk(RSA, "a"), jwk(EC, "b"), jwk(OTHER_RSA, None)), secrets=False)
    assert matching(keys, "RS256", "a") == [keys[0], keys[2]]
    assert matching(keys, "RS256", None) == [keys[0], keys[2]]
    assert matching(keys, "ES256", "a") == []


async def test_a_file_is_read_again_and_key_ids_choose(tmp_path: Path) -> None:
    now = [0.0]
    file = written(tmp_path, set_of(jwk(RSA, "one")))
    check = checker(file, clock=lambda: now[0])
    assert await check.check(token(headers={"kid": "one"})) is not None
    assert await check.check(token()) is not None, "a token without key id is tried with all keys"
    assert await check.check(token(headers={"kid": "two"})) is None
    file.write_text(set_of(jwk(OTHER_RSA, "two")))
    now[0] += 1
    assert await check.check(token(headers={"kid": "one"})) is None
    assert await check.check(token(key=OTHER_RSA, headers={"kid": "two"})) is not None
    file.write_text("{")
    now[0] += 1
    assert await check.check(token(key=OTHER_RSA, headers={"kid": "two"})) is not None


@dataclass
class Issuer:
    """A JWKS address that answers what it is told, or nothing."""

    url: str
    body: str = ""
    status: str = "200 OK"
    hang: bool = False
    num_requests: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):  # who gave up before it asked
            await reader.readuntil(b"\r\n\r\n")
        self.num_requests += 1
        self.asked.set()
        if self.hang:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")  # and never the rest
            await reader.read()
        else:
            data = self.body.encode()
            writer.write(f"HTTP/1.1 {self.status}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
        writer.close()


@asynccontextmanager
async def issuer() -> AsyncIterator[Issuer]:
    found = Issuer("")
    server = await asyncio.start_server(lambda r, w: found.serve(r, w), "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/jwks"
    try:
        yield found
    finally:
        server.close()


async def settled(check: JwtCheck) -> None:
    """A fetch beside the requests is over."""
    fetch = check._keys._fetch  # type: ignore[attr-defined]
    if fetch is not None:
        await fetch


async def test_an_address_is_asked_seldom(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    async with issuer() as source:
        source.body = set_of(jwk(RSA, "one"))
        check = checker(source.url, clock=lambda: now[0])
        first, second = token(headers={"kid": "one"}), token(key=OTHER_RSA, headers={"kid": "two"})
        results = await asyncio.gather(*(check.check(first) for _ in range(50)))
        assert all(results) and source.num_requests == 1, "one fetch for all who wait"

        source.body = set_of(jwk(RSA, "one"), jwk(OTHER_RSA, "two"))
        for _ in range(20):
            assert await check.check(second) is None
        assert source.num_requests == 1, "unknown key ids are asked for at a bounded rate"
        now[0] += jwks.RETRY_S
        assert await check.check(second) is not None
        assert source.num_requests == 2

        source.body = set_of(jwk(OTHER_RSA, "two"))
        now[0] += jwks.REFRESH_S
        assert await check.check(first) is not None, "the old keys do while new ones are fetched"
        await settled(check)
        assert await check.check(first) is None
        assert source.num_requests == 3

        source.status = "500 Oh"
        now[0] += jwks.REFRESH_S
        assert await check.check(second) is not None
        await settled(check)
        assert await check.check(second) is not None, "a failing address keeps the keys"
        assert "it answers 500" in caplog.text
        now[0] += jwks.MAX_STALE_S
        with pytest.raises(OverloadedError, match="cannot be checked now"):
            await check.check(second)


@pytest.mark.parametrize(
    ("body", "status"), [("", "200 OK"), ("{}", "200 OK"), ("x" * (2 << 20), "200 OK"), ("{}", "302 Found")]
)
async def test_an_address_that_gives_no_keys_lets_nobody_in(body: str, status: str) -> None:
    async with issuer() as source:
        source.body, source.status = body, status
        check = checker(source.url)
        for _ in range(3):
            with pytest.raises(OverloadedError):
                await check.check(token())
        assert source.num_requests == 1
    with pytest.raises(OverloadedError):
        await checker(source.url).check(token())  # nobody listens there now


async def test_an_address_that_hangs_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(jwks, "DEADLINE_S", 1.0)
    engine = ScriptedEngine(lambda _: ids_of("ok"))
    async with issuer() as source, live_server(tmp_path, engine, jwt_keys=source.url, api_key=("k",)) as live:
        source.hang = True
        waiting = asyncio.create_task(status(live, token()))
        await source.asked.wait()
        assert await status(live, b"k") == 200, "a key needs no address"
        assert (await live.http.get("/health/ready")).status_code == 200
        assert await waiting == 503
        refused = await live.http.get("/v1/models", headers={"authorization": b"Bearer " + token()})  # type: ignore[dict-item]
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "auth_unavailable")
        assert "retry-after" in refused.headers
        assert await status(live, b"nonsense") == 401
        assert "did not answer within 1 s" in caplog.text


async def status(live: Live, credential: bytes) -> int:
    headers: Any = {"authorization": b"Bearer " + credential}
    return (await live.http.get("/v1/models", headers=headers)).status_code


async def test_tokens_are_keys_of_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="quire")
    engine = ScriptedEngine(lambda _: ids_of("ok"))
    file = written(tmp_path, pem(EC))
    async with live_server(tmp_path, engine, jwt_keys=str(file), requests_per_minute=1) as live:
        assert await status(live, token("ES256")) == 200
        assert await status(live, token("ES256", exp=time.time() - 100)) == 401
        assert (await live.http.get("/v1/models")).status_code == 401
        body = {"prompt": "hi"}
        answers = []
        for subject in ("alice", "alice", "bob"):
            headers: Any = {"x-api-key": token("ES256", sub=subject)}
            answers.append((await live.http.post("/v1/completions", json=body, headers=headers)).status_code)
        assert answers == [200, 429, 200], "limits are of each subject"
    assert "key=jwt:alice" in caplog.text
    assert token("ES256").split(b".")[0].decode() not in caplog.text
