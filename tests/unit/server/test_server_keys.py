"""Keys: the file and its lines, reading it again, both headers, limits of each key, and that no route is without a guard."""

import asyncio
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers

from live_server import Live, ids_of, live_server
from quire.config import ServeConfig
from quire.entrypoints import cli
from quire.errors import ConfigError, OverloadedError
from quire.server.app import create_app
from quire.server.auth.guard import HEALTH_PATHS, METRICS_PATH, Guard
from quire.server.auth.keys import KeySet, Limits, Principal, digest_of, keys_of, line_of, new_key
from quire.server.flight.frontend import Frontend
from quire.server.page import routes as page
from quire.server.watched import LOOK_S, RETRY_S, Watched
from scripted_engine import ScriptedEngine
from server_routes import routes_of


def bearer(key: str) -> dict[str, Any]:
    return {"authorization": f"Bearer {key}".encode()}


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: ids_of("ok"))


async def status(live: Live, headers: dict[str, Any], path: str = "/v1/models") -> int:
    return (await live.http.get(path, headers=headers)).status_code


def main(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("metrics_auth", [False, True])
async def test_every_route_but_the_open_ones_needs_a_key(tmp_path: Path, metrics_auth: bool) -> None:
    """B053: of the whole application, whatever a route came with."""
    async with live_server(tmp_path, engine(), api_key=("one", "twö"), metrics_auth=metrics_auth) as live:
        routes = list(routes_of(create_app(live.frontend).routes))
        known = {(method, re.sub(r"\{[^}]*\}", "x", r.path)) for r in routes for method in r.methods or ()}
        assert {path for _, path in known} >= {"/docs", "/openapi.json", "/redoc", "/v1/completions", "/metrics"}
        strange = [
            ("GET", path)
            for path in ("/nothing", "//v1/models", "/V1/models", "/health/", "/METRICS", "/health/live/x")
        ]
        open_paths = {*HEALTH_PATHS, *page.load()} | (set() if metrics_auth else {METRICS_PATH})
        for method, path in [*known, *strange]:
            response = await live.http.request(method, path)
            if path in open_paths:
                assert response.status_code == 200, path
                continue
            assert (response.status_code, response.headers.get("www-authenticate")) == (401, "Bearer"), path
            if method != "HEAD":
                assert response.json()["error"]["type"] == "authentication_error"
        for headers in [
            bearer("three"),
            {"authorization": "one"},
            {"authorization": "Basic one"},
            {"x-api-key": "One"},
        ]:
            assert await status(live, headers) == 401
        for key in ["one", "twö"]:
            assert await status(live, bearer(key)) == 200
            assert await status(live, {"x-api-key": key.encode()}) == 200
        assert await status(live, {"authorization": "Basic proxy", "x-api-key": "one"}) == 200


async def test_a_file_of_keys_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire")
    now, file = [0.0], tmp_path / "keys"
    alice, bob = new_key(), new_key()
    file.write_text(f"# who may\n\n{line_of('alice', alice)} # first\n")

    async with live_server(tmp_path, engine(), api_key_file=str(file), clock=lambda: now[0]) as live:

        async def allowed() -> tuple[bool, bool]:
            return await status(live, bearer(alice)) == 200, await status(live, bearer(bob)) == 200

        def replace(text: str | bytes) -> None:
            (tmp_path / "new").write_bytes(text if isinstance(text, bytes) else text.encode())
            os.replace(tmp_path / "new", file)
            now[0] += 1

        assert await allowed() == (True, False)
        replace(f"{line_of('alice', alice)}\n{line_of('bob', bob)}\n")
        assert await allowed() == (True, True)
        for bad in (f"bob {bob}\n".encode(), b"bob sha256:00\n", b"\xff"):
            replace(bad)
            assert await allowed() == (True, True)
            now[0] += 1
            await allowed()
        assert len(re.findall("the list of keys read before stays in use", caplog.text)) == 2, "each fault is told once"
        file.unlink()
        now[0] += 1
        assert await allowed() == (True, True)
        replace("")
        assert await allowed() == (False, False), "an empty file lets nobody in"
        replace(line_of("bob", bob))
        assert await allowed() == (False, True)
        now[0] += 1
        await allowed()
        assert caplog.text.count("read the list of keys again") == 3, "once for each change"
        assert alice not in caplog.text and bob not in caplog.text


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("al/ice sha256:" + "0" * 64, "begins with a name"),
        ("key-2 sha256:" + "0" * 64, "not everybody or key-N"),
        ("everybody sha256:" + "0" * 64, "not everybody or key-N"),
        ("alice", "quire key hash alice"),
        ("alice secret-key", "after the name comes sha256:"),
        ("alice sha256:" + "0" * 63, "after the name comes sha256:"),
        ("alice sha256:" + "0" * 64 + " requests=5", "requests_per_minute=N"),
        ("alice sha256:" + "0" * 64 + " max_concurrent=-1", "at least 0"),
        ("bob sha256:" + "0" * 64 + "\nbob sha256:" + "1" * 64, "line 2: it has the name of line 1"),
        ("bob sha256:" + "0" * 64 + "\nal sha256:" + "0" * 64, "line 2: it has the hash of line 1"),
    ],
)
def test_a_bad_line_ends_the_start_and_is_not_shown(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        keys_of(line, source="--api-key-file f", defaults=Limits())
    assert "--api-key-file f, line" in str(caught.value)
    assert "secret-key" not in str(caught.value)


def test_a_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    config = ServeConfig(api_key_file=str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"--api-key-file .*absent cannot be read: No such file"):
        create_app(Frontend(config))


def test_lines_have_limits_of_their_own() -> None:
    zeros = "sha256:" + "0" * 64
    (key,) = keys_of(f"a {zeros} tokens_per_minute=7 requests_per_minute=0", source="f", defaults=Limits(1, 2, 3))
    assert key.principal.limits == Limits(requests_per_minute=None, tokens_per_minute=7, max_concurrent=3)


def test_a_key_is_found_among_many_and_only_that() -> None:
    text = "\n".join(line_of(f"user-{n}", f"key-{n}") for n in range(5000))
    keys = KeySet(keys_of(text, source="f", defaults=Limits()))
    assert len(keys) == 5000
    found = keys.find(b"key-4321")
    assert found is not None and found.name == "user-4321"
    assert keys.find(b"key-5000") is None and keys.find(b"") is None and keys.find(digest_of("key-1")) is None


async def test_an_empty_credential_is_none() -> None:
    guard = Guard(ServeConfig.model_construct(api_key=("",)))
    for name, value in (("authorization", "Bearer "), ("authorization", "Bearer"), ("x-api-key", " ")):
        assert await guard.principal(Headers({name: value})) is None


async def test_keys_come_before_tokens() -> None:
    """A token that cannot be checked now keeps nobody out who has a key."""

    class Busy:
        async def check(self, given: bytes) -> Principal | None:
            raise OverloadedError("the issuer does not answer", reason="jwt_keys")

    guard = Guard(ServeConfig(api_key=("one",)))
    guard._tokens = Busy()
    found = await guard.principal(Headers({"authorization": "Bearer a.b.c", "x-api-key": "one"}))
    assert found is not None and found.name == "key-1"
    with pytest.raises(OverloadedError):
        await guard.principal(Headers({"authorization": "Bearer a.b.c"}))


def test_a_bad_file_is_not_read_again_and_again(tmp_path: Path) -> None:
    now, file, read = [0.0], tmp_path / "file", []
    file.write_text("good")

    def content() -> str:
        read.append(now[0])
        text = file.read_text()
        if text.startswith("bad"):
            raise ConfigError(text)
        return text

    watched = Watched("it", [file], content, clock=lambda: now[0])
    file.write_text("bad")
    for _ in range(10):
        now[0] += LOOK_S
        assert watched.value == "good"
    assert read == [0, LOOK_S]
    file.write_text("bad as well")
    now[0] += LOOK_S
    assert watched.value == "good" and len(read) == 3, "another file is another chance"
    now[0] += RETRY_S
    assert watched.value == "good" and len(read) == 4, "what was wrong may lie beside the file"
    file.write_text("better")
    now[0] += LOOK_S
    assert watched.value == "better"


async def test_limits_of_a_key(tmp_path: Path) -> None:
    now, file = [0.0], tmp_path / "keys"
    file.write_text(f"{line_of('slow', 's')} requests_per_minute=2\n{line_of('small', 't')} tokens_per_minute=3\n")
    flags = {"api_key_file": str(file), "requests_per_minute": 100, "max_concurrent": 1}
    async with live_server(tmp_path, engine(), clock=lambda: now[0], **flags) as live:
        live.http.headers.update(bearer("s"))
        first, second, third = [await live.chat() for _ in range(3)]
        assert [r.status_code for r in (first, second, third)] == [200, 200, 429]
        remaining = [r.headers["x-ratelimit-remaining-requests"] for r in (first, second, third)]
        assert remaining == ["1", "0", "0"]
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert (third.headers["retry-after"], third.headers["x-ratelimit-reset-requests"]) == ("30", "1m0s")
        assert third.json()["error"] == {
            "message": "this key may make 2 requests a minute; the next is possible in 30 s",
            "type": "rate_limit_error",
            "param": None,
            "code": "rate_limit_exceeded",
        }
        assert await live.metric('quire_dropped_requests_total{reason="rate_limit"}') == 1
        assert await status(live, bearer("s")) == 200, "what runs no model is not counted"
        now[0] += 30
        assert (await live.chat()).status_code == 200

        live.http.headers.update(bearer("t"))
        answer = await live.chat()
        used = answer.json()["usage"]["total_tokens"]
        assert answer.headers["x-ratelimit-remaining-tokens"] == "3" and used > 3
        refused = await live.chat()
        assert refused.status_code == 429 and "3 tokens a minute" in refused.json()["error"]["message"]
        assert int(refused.headers["retry-after"]) == (used - 3 + 1) * 20
        assert refused.headers["x-ratelimit-limit-requests"] == "100", "the flag's, where the line says nothing"


async def test_requests_of_a_key_at_once_and_what_frees_them(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine(), api_key=("a", "b"), max_concurrent=1) as live:
        live.http.headers.update(bearer("a"))
        live.engine.hold()
        task = asyncio.create_task(live.chat(stream=True))
        await live.engine.until(lambda: live.engine.requests)
        refused = await live.chat()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        other = asyncio.create_task(live.http.post("/v1/completions", json={"prompt": "x"}, headers=bearer("b")))
        await live.engine.until(lambda: len(live.engine.requests) == 2)
        task.cancel()  # the client leaves
        await asyncio.gather(task, return_exceptions=True)
        await live.engine.until(lambda: live.engine.aborted)
        live.engine.release()
        assert (await live.chat()).status_code == 200
        assert (await live.chat(temperature=-1)).status_code == 400
        assert (await live.chat()).status_code == 200
        assert (await other).status_code == 200


async def test_without_keys_the_limits_are_of_all_together(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine(), requests_per_minute=1) as live:
        assert [(await live.chat()).status_code for _ in range(2)] == [200, 429]
    async with live_server(tmp_path, engine()) as live:
        assert not [name for name in (await live.chat()).headers if name.startswith("x-ratelimit")]


async def test_the_log_names_the_key_but_never_shows_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="quire")
    file = tmp_path / "keys"
    file.write_text(line_of("alice", "secret-key"))
    async with live_server(tmp_path, engine(), api_key_file=str(file)) as live:
        await live.http.get("/version", headers=bearer("secret-key"))
        await live.http.get("/version", headers=bearer("wrong-key"))
    assert re.search(r"GET /version 200 .* key=alice", caplog.text)
    assert "secret-key" not in caplog.text and "wrong-key" not in caplog.text


def test_the_command_line_makes_keys(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert main("key", "new", "alice") == 0
    out, err = capsys.readouterr()
    key = err.split()[-1]
    assert re.fullmatch(r"qk_[A-Za-z0-9_-]{43}", key) and key not in out
    (tmp_path / "in").write_text(f"{key}\n")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main("key", "hash", "alice") == 0
        assert capsys.readouterr().out == out
        assert main("key", "hash", "alice") == 2
    assert "standard input" in capsys.readouterr().err
    for name in ("a b", "key-1", "everybody"):
        assert main("key", "new", name) == 2
        assert "NAME must be" in capsys.readouterr().err
    (found,) = keys_of(out, source="f", defaults=Limits())
    assert (found.principal.name, found.digest) == ("alice", digest_of(key))
