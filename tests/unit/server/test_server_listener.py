"""Clients that do not send or do not read, TLS, other origins, log lines in JSON, compression; on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import http.client
import json
import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from live_server import Live, events_of, ids_of, live_server
from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.logs import JsonFormatter
from quire.server.app import create_app
from quire.server.edge.listener import MAX_HEAD_BYTES, SLICE_BYTES, listen
from quire.server.edge.tls import tls_context
from quire.server.flight.frontend import Frontend
from scripted_engine import ScriptedEngine

CHAT = "/v1/chat/completions"
LONG = ids_of("x" * 100)
BODY = {"messages": [{"role": "user", "content": "hi"}]}


@asynccontextmanager
async def connection(live: Live) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Bytes to and from the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.frontend.config.port, limit=1 << 24)
    try:
        yield reader, writer
    finally:
        writer.close()


def server_side(live: Live, writer: asyncio.StreamWriter) -> Any:
    """The server's protocol of a connection."""
    mine = writer.get_extra_info("sockname")
    [found] = [one for one in live.server.server_state.connections if one.transport.get_extra_info("peername") == mine]
    return found


def request(body: bytes, *, length: int | None = None) -> bytes:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body) if length is None else length}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    "sent", [b"", b"POST / HT", b"GET /version HTTP/1.1\r\nhost: x\r\nx-slow: ", request(b"{", length=100)]
)
async def test_who_does_not_send_a_whole_request_is_cut(
    tmp_path: Path, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), client_timeout=0.05) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(10):
            writer.write(sent)
            with pytest.raises(ConnectionResetError):
                await reader.read()
                raise ConnectionResetError  # closed, not reset
        assert "did not send the rest of its request for 0.05 s (--client-timeout)" in caplog.text
        assert (await live.chat()).status_code == 200
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"nonsense\r\n\r\n", 400, "invalid_http"),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400, "invalid_http"),
        (b"GET /version HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n", 400, "invalid_http"),
        (b"GET /version HTTP/1.1\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(1_000_000)), 431, "head_too_large"),
        (b"GET /version HTTP/1.1\r\nx: " + b"y" * 10_000_000, 431, "head_too_large"),
        (b"GET /" + b"y" * 10_000_000, 431, "head_too_large"),
    ],
)
async def test_what_is_no_request_is_told_so(tmp_path: Path, sent: bytes, status: int, code: str) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(30):
            for start in range(0, len(sent), 1 << 16):
                writer.write(sent[start : start + (1 << 16)])
                await asyncio.sleep(0)
                if writer.is_closing() or reader.at_eof():
                    break
            try:
                answer = await reader.read()
            except ConnectionResetError:
                assert status == 431, "it is still being sent when the answer comes"
                answer = b""
            if answer:
                assert answer.startswith(f"HTTP/1.1 {status} ".encode())
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == code
            assert answer or status == 431
        assert (await live.chat()).status_code == 200


async def test_the_memory_of_a_head_is_bounded(tmp_path: Path) -> None:
    """Whatever the client goes on to send, the server has cut it after little more than the bound."""
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(30):
            writer.write(b"GET /version HTTP/1.1\r\nx: " + b"y" * 100_000)
            await writer.drain()
            writer.write(b"y" * 100_000)
            answer = await reader.read(17)
            assert answer == b"HTTP/1.1 431 Requ"
        assert (await live.chat()).status_code == 200


TRAILED = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n".encode()


@pytest.mark.parametrize("api_key", [(), ("k",)])
@pytest.mark.parametrize("trailer", [b"x: y\r\n", b"y" * 6])
async def test_trailers_are_bounded(tmp_path: Path, api_key: tuple[str, ...], trailer: bytes) -> None:
    """They are told so while the body is awaited; with the answer on its way (here a 401) they are cut."""
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), api_key=api_key) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(30):
            writer.write(TRAILED)
            if api_key:
                assert b" 401 " in await reader.readuntil(b"\r\n")
            sent = 0
            with pytest.raises(ConnectionError):
                while not reader.at_eof() and sent < 10_000_000:
                    writer.write(trailer * 1000)
                    sent += len(trailer) * 1000
                    await writer.drain()
                    await live.http.get("/version")
                if not api_key:
                    assert b" 431 " in await reader.readline()
                raise ConnectionResetError  # closed, not reset
            assert sent < 10 * MAX_HEAD_BYTES
        live.http.headers["authorization"] = "Bearer k"
        assert (await live.chat()).status_code == 200


async def test_requests_that_wait_behind_one_are_few(tmp_path: Path) -> None:
    """However many come at once, and whatever they wait for; each is answered, in order."""
    asked = b"GET /version HTTP/1.1\r\n\r\n"
    number, most = 3000, SLICE_BYTES // len(asked) + 1
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        live.engine.hold()
        async with connection(live) as (reader, writer), asyncio.timeout(60):
            writer.write(request(json.dumps(BODY).encode()) + asked * number)
            await live.engine.until(lambda: live.engine.requests)
            waiting = server_side(live, writer)
            while not waiting.flow.held:
                await live.http.get("/version")
            for _ in range(5):
                await live.http.get("/version")
                assert 0 < len(waiting.pipeline) <= most
            live.engine.release()
            answers = b""
            while (count := answers.count(b"HTTP/1.1 200 OK")) <= number:
                assert len(waiting.pipeline) <= most
                answers += await reader.read(1 << 16)
            assert count == number + 1 and answers.count(b'{"version"') == number
            assert answers.index(b"chat.completion") < answers.index(b'{"version"')
            writer.write(asked)
            assert await reader.readline() == b"HTTP/1.1 200 OK\r\n", "the connection goes on"


async def test_what_comes_behind_is_not_read_while_others_are_answered(tmp_path: Path) -> None:
    """Each request reads its own body, which would let more of the next ones in."""
    body = json.dumps({"prompt": "hi", "user": "x" * 1000}).encode()
    asked = f"POST /tokenize HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
    async with (
        live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live,
        connection(live) as (reader, writer),
        asyncio.timeout(60),
    ):
        writer.write(asked * 10_000)
        for _ in range(50):
            await reader.readuntil(b"HTTP/1.1 200 OK")
        assert 0 < len(server_side(live, writer)._later) < 1_000_000


async def test_a_body_that_waits_behind_a_request_is_not_read(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        live.engine.hold()
        async with connection(live) as (reader, writer), asyncio.timeout(60):
            body = json.dumps({**BODY, "user": "x" * 8_000_000}).encode()
            writer.write(request(json.dumps(BODY).encode()) + request(body))
            await live.engine.until(lambda: live.engine.requests)
            waiting = server_side(live, writer)
            while not waiting.flow.held:
                await live.http.get("/version")
            for _ in range(5):
                await live.http.get("/version")
                assert len(waiting.cycle.body) + len(waiting._later) < 1_000_000
            live.engine.release()
            await reader.readuntil(b"HTTP/1.1 200 OK")
            await reader.readuntil(b"HTTP/1.1 200 OK")


async def test_a_long_body_in_small_chunks_is_no_head(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:

        async def pieces() -> AsyncIterator[bytes]:
            body = json.dumps({**BODY, "user": "x" * 200_000}).encode()
            for start in range(0, len(body), 1000):
                yield body[start : start + 1000]

        assert (await live.http.post(CHAT, content=pieces())).status_code == 200


async def test_a_line_end_between_requests_keeps_no_connection_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), client_timeout=0.05) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(10):
            for _ in range(2):
                writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert b"version" in await reader.readuntil(b"}")
                writer.write(b"\r\n")
            with pytest.raises(ConnectionResetError):
                await reader.read()
                raise ConnectionResetError  # closed, not reset
        assert "did not send the rest of its request" in caplog.text


async def test_who_keeps_a_connection_for_later_is_not_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), client_timeout=0.02) as live:
        async with connection(live) as (reader, writer), asyncio.timeout(10):
            for _ in range(2):
                writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                async with connection(live) as (other, _):  # that one is cut, so the time has passed
                    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                        await other.readexactly(1)
                assert b"version" in await reader.readuntil(b"}")
        assert len(re.findall("is cut", caplog.text)) == 2


async def test_who_does_not_read_is_cut_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One does not read its tokens, others get theirs meanwhile; its request ends in the engine, which would go on for long."""
    num_tokens = 400_000

    def reply(asked: object) -> list[int]:
        return ids_of("y") * num_tokens

    engine = ScriptedEngine(reply, max_model_len=num_tokens + 100)
    async with live_server(tmp_path, engine, client_timeout=0.2) as live:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", live.frontend.config.port))
        await loop.sock_sendall(sock, request(json.dumps({**BODY, "stream": True}).encode()))
        await engine.until(lambda: engine.requests)
        answers = [await live.chat(stream=True, max_tokens=5) for _ in range(5)]
        assert all(events_of(answer.text)[-1] == "[DONE]" for answer in answers)
        await engine.until(lambda: engine.aborted)
        assert engine.aborted == [engine.requests[0].request_id]
        assert "did not read its answer for 0.2 s" in caplog.text
        async with asyncio.timeout(10):
            await live.frontend.drained()
        sock.close()


async def test_who_closes_behind_the_answer_sees_a_refusal_all_the_same(tmp_path: Path) -> None:
    """It writes all of its body first: a reset meanwhile would lose the answer."""
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), api_key=("k",)) as live:

        def ask() -> int:
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", live.frontend.config.port, timeout=30)
            ) as far:
                far.request("POST", CHAT, body=b"x" * (12 << 20), headers={"connection": "close"})
                return far.getresponse().status

        assert await asyncio.to_thread(ask) == 401


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="quire.access")
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        async with connection(live) as (_, writer):
            writer.write(request(b"{", length=100))
            await writer.drain()
            assert (await live.http.get("/version")).status_code == 200
        async with asyncio.timeout(10):
            while f"POST {CHAT} 499" not in caplog.text:
                await live.http.get("/version")
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_nothing_waits_for_the_client_to_acknowledge(tmp_path: Path) -> None:
    """A head and its body are two writes; with Nagle's algorithm the second one waits 40 ms."""
    async with live_server(tmp_path, ScriptedEngine()) as live:
        assert (await live.http.get("/version")).status_code == 200
        sockets = [one.transport.get_extra_info("socket") for one in live.server.server_state.connections]
        assert [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in sockets] == [1]


async def test_streams_are_never_compressed(tmp_path: Path) -> None:
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG)) as live:
        live.http.headers["accept-encoding"] = "gzip, br, zstd"
        for stream in (False, True):
            answer = await live.chat(stream=stream)
            assert "content-encoding" not in answer.headers
        assert answer.headers["cache-control"] == "no-cache, no-transform"
        assert answer.headers["x-accel-buffering"] == "no"


async def test_other_origins(tmp_path: Path) -> None:
    page = {"origin": "https://page.example"}
    asks = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization, x-y"}
    engine = ScriptedEngine(lambda _: LONG)
    async with live_server(tmp_path, engine, cors_allow_origin=("https://page.example",), api_key=("k",)) as live:
        asked = await live.http.options(CHAT, headers=asks)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, page["origin"])
        assert "authorization" in asked.headers["access-control-allow-headers"]
        refused = await live.http.post(CHAT, headers=page)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, page["origin"])
        assert "x-request-id" in refused.headers["access-control-expose-headers"]
        other = await live.http.options(CHAT, headers={**asks, "origin": "https://else.example"})
        assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
    async with live_server(tmp_path, engine) as live:
        assert (await live.http.options(CHAT, headers=asks)).status_code == 405
        assert "access-control-allow-origin" not in (await live.http.get("/version", headers=page)).headers


def certificate(folder: Path, name: str, *, number: int = 1) -> tuple[Path, Path]:
    """Files with a certificate for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(number)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certfile, keyfile = folder / f"{name}.pem", folder / f"{name}.key"
    certfile.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    keyfile.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return certfile, keyfile


async def test_tls_and_a_renewed_certificate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    certfile, keyfile = certificate(tmp_path, "first", number=11)
    config = {"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile)}
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), clock=lambda: now[0], **config) as live:
        url = f"https://localhost:{live.frontend.config.port}"

        async def serial(trusted: Path) -> int:
            context = ssl.create_default_context(cafile=str(trusted))
            async with (
                httpx.AsyncClient(verify=context, base_url=url) as client,
                client.stream("POST", CHAT, json={**BODY, "stream": True}) as answer,
            ):
                assert "[DONE]" in (await answer.aread()).decode()
                der = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert(True)
            return x509.load_der_x509_certificate(der).serial_number

        assert await serial(certfile) == 11
        second, second_key = certificate(tmp_path, "second", number=22)
        certfile.write_bytes(second.read_bytes())  # with the key of the first: no pair
        now[0] += 1
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await serial(second)
        assert "the certificate read before stays in use" in caplog.text
        keyfile.write_bytes(second_key.read_bytes())
        now[0] += 1
        assert await serial(second) == 22
        with pytest.raises(httpx.RemoteProtocolError):
            await live.http.get("/version")  # plain HTTP


async def test_clients_need_a_certificate_where_authorities_are_given(tmp_path: Path) -> None:
    certfile, keyfile = certificate(tmp_path, "server")
    mine, my_key = certificate(tmp_path, "client")
    config = {"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile), "ssl_ca_certs": str(mine)}
    async with live_server(tmp_path, ScriptedEngine(lambda _: LONG), **config) as live:
        url = f"https://localhost:{live.frontend.config.port}/version"
        context = ssl.create_default_context(cafile=str(certfile))
        async with httpx.AsyncClient(verify=context) as client:
            with pytest.raises(httpx.TransportError):
                await client.get(url)
        context.load_cert_chain(mine, my_key)
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(url)).status_code == 200


def test_a_certificate_that_is_none_ends_the_start(tmp_path: Path) -> None:
    certfile, keyfile = certificate(tmp_path, "one")
    (tmp_path / "bad").write_text("nothing")
    for fields, words in [
        ({"ssl_keyfile": "x"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ssl_ca_certs": "x"}, "--ssl-ca-certs needs --ssl-certfile"),
        ({"ssl_certfile": str(tmp_path / "absent")}, "absent cannot be used: No such file"),
        ({"ssl_certfile": str(tmp_path / "bad")}, "bad cannot be used: "),
        ({"ssl_certfile": str(certfile)}, "one.pem cannot be used: "),
        (
            {"ssl_certfile": str(certfile), "ssl_keyfile": str(keyfile), "ssl_ca_certs": str(tmp_path / "bad")},
            "--ssl-ca-certs .*bad cannot be used: ",
        ),
    ]:
        with pytest.raises(ConfigError, match=words):
            tls_context(ServeConfig.model_validate(fields))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"host": "198.18.255.254"},
            "--host 198.18.255.254 --port 8000: Cannot assign .*; give an address of this machine",
        ),
        ({"host": "no.such.host.invalid"}, "--host no.such.host.invalid .*; give an address of this machine"),
    ],
)
def test_where_nobody_can_listen_the_advice_is_of_use(fields: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        listen(ServeConfig.model_validate(fields))


def test_a_bound_that_lets_no_body_through_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="--max-body-size must be at least 1024, got 0"):
        create_app(Frontend(ServeConfig(max_body_size="0")))


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What `--log-format=json` writes."""
    written: list[str] = []
    handler = logging.Handler()
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("quire")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    handler.emit = lambda record: written.append(handler.format(record))  # type: ignore[method-assign]
    yield written
    logger.removeHandler(handler)
    logger.setLevel(before)


async def test_log_lines_in_json(tmp_path: Path, lines: list[str]) -> None:
    engine = ScriptedEngine(lambda _: ids_of("answer"))
    async with live_server(tmp_path, engine, api_key=("k",)) as live:
        live.http.headers.update({"authorization": "Bearer k", "x-request-id": "abc"})
        await live.chat("prompt-text")
        engine.add = None  # type: ignore[assignment,method-assign]
        await live.chat()
    told = [json.loads(line) for line in lines]
    (access,) = [one for one in told if one.get("status") == 200]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", access.pop("time"))
    assert access.pop("duration_s") >= access.pop("ttft_s") >= 0
    assert access.pop("message").startswith(f"POST {CHAT} 200 ")
    assert access.pop("prompt_tokens") > 0
    assert access == {
        "level": "info",
        "logger": "quire.access",
        "method": "POST",
        "path": CHAT,
        "status": 200,
        "request_id": "abc",
        "key": "key-1",
        "cached_tokens": 1,
        "completion_tokens": 7,
        "finish_reasons": ["stop"],
    }
    (fault,) = [one for one in told if one["level"] == "error"]
    assert fault["request_id"] == "abc" and "TypeError" in fault["exception"]
    assert "prompt-text" not in str(told)


async def test_prompts_are_logged_only_where_it_is_asked_for(tmp_path: Path, lines: list[str]) -> None:
    engine = ScriptedEngine(lambda _: ids_of("answer-text"))
    async with live_server(tmp_path, engine, log_requests=True) as live:
        await live.complete(["prompt-text", "other"], n=2)
    (told,) = [json.loads(line) for line in lines if "prompt-text" in line]
    assert told["logger"] == "quire.requests" and len(told["request_id"]) == 32
    assert [prompt.removeprefix("<s>") for prompt in told["prompts"]] == ["prompt-text", "other"]
    assert told["answers"] == ["answer-text"] * 4
