"""The web page as files: what is sent, with which headers, to whom, and that it is in the wheel."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from live_server import ids_of, live_server
from quire.server.page import routes as page
from scripted_engine import ScriptedEngine

RUNTIME = Path(page.__file__).parents[3]
FILES = page.load()


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _: ids_of("ok"))


async def test_every_file_is_sent_without_a_key_and_with_a_strict_policy(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine(), api_key=("secret",)) as live:
        assert {"/", "/page/app.js", "/page/style.css", "/page/icon.svg"} <= FILES.keys()
        for path, file in FILES.items():
            answer = await live.http.get(path)
            assert (answer.status_code, answer.content) == (200, file.content), path
            policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
            assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == "'none'"
            assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["img-src"] == "'self'"
            assert policy["frame-ancestors"] == policy["trusted-types"] == "'none'"
            assert policy["require-trusted-types-for"] == "'script'"
            assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await live.http.get("/")).headers["content-type"] == "text/html; charset=utf-8"
        assert (await live.http.get("/page/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await live.http.get("/page/../api.js")).status_code == 401
        assert (await live.http.post("/")).status_code == 405  # of what is public, and says nothing


async def test_a_browser_that_has_a_file_is_not_sent_it_again(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine()) as live:
        first = await live.http.get("/page/app.js")
        again = await live.http.get("/page/app.js", headers={"if-none-match": f'"other", W/{first.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-security-policy" in again.headers
        other = await live.http.get("/page/app.js", headers={"if-none-match": '"other"'})
        assert other.status_code == 200


async def test_it_can_be_turned_off(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine(), web_page=False) as live:
        for path in FILES:
            assert (await live.http.get(path)).status_code == 404
    async with live_server(tmp_path, engine(), web_page=False, api_key=("secret",)) as live:
        for path in FILES:
            assert (await live.http.get(path)).status_code == 401


async def test_openapi_does_not_tell_of_it(tmp_path: Path) -> None:
    async with live_server(tmp_path, engine()) as live:
        assert not FILES.keys() & (await live.http.get("/openapi.json")).json()["paths"].keys()


def test_nothing_in_it_comes_from_elsewhere_or_writes_html() -> None:
    for path, file in FILES.items():
        text = file.content.decode()
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
        comments = set(re.findall(r"https?://html\.spec\.whatwg\.org", text))
        assert addresses <= comments, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text), path
        assert not re.search(r"<[^>]*\s(?:style|on\w+)=", text), path


def test_every_file_it_names_is_there() -> None:
    for path, file in FILES.items():
        named = re.findall(r'(?:from|src=|href=|import) ?"((?:page|\.)/[\w.-]+)"', file.content.decode())
        for name in named:
            assert f"/page/{name.rsplit('/', 1)[1]}" in FILES, f"{path} names {name}"


@pytest.mark.parametrize("name", [path.name for path in sorted(page.STATIC.iterdir())])
def test_the_wheel_has_it(name: str) -> None:
    included = {file.distribution_path for file in WheelBuilder(str(RUNTIME)).recurse_included_files()}
    assert f"quire/server/page/static/{name}" in included


async def test_an_open_page_does_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="quire.access")
    async with live_server(tmp_path, engine()) as live:
        for path in ("/", "/page/app.js", "/load", "/health/ready"):
            await live.http.get(path)
        assert caplog.records == []
        await live.http.get("/v1/models")
        assert len(caplog.records) == 1
