"""Buckets without keys of one's own: an identity is exchanged for keys, and what they sign is checked as the store checks it."""

from __future__ import annotations

import http.client
import http.server
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx
import pytest

from bucket_server import FILES, NAMESPACE, ROLE, WRONG, Store, store
from quire.errors import ConfigError, ModelError
from quire.fetch.fetch import Fetch, _client, fetch
from quire.fetch.identity import Agent, Credentials, Exchanged, identity_of
from quire.fetch.s3 import Bucket
from threaded_server import served


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """As the kubelet projects it."""
    file = tmp_path / "token"
    file.write_text("token-1\n")
    return file


def web_identity(there: Store, token: Path) -> dict[str, str]:
    return {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL_STS": there.url}


def void(written: int) -> None:
    """Nothing."""


def agent(url: str, token: Path) -> dict[str, str]:
    return {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/agent",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
    }


def get(there: Store, folder: Path, environ: dict[str, str], *, parallel: int = 4) -> list[str]:
    """What was said."""
    said: list[str] = []
    wanted = Fetch("s3://bucket/m", folder, endpoint=there.url, attempts=3, parallel=parallel)
    fetch(wanted, environ, say=said.append, sleep=lambda pause: None)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")} == FILES
    return said


def test_a_token_is_exchanged_once_and_its_keys_sign_everything(tmp_path: Path, token: Path) -> None:
    with store() as there:
        said = get(there, tmp_path / "m", web_identity(there, token))
        assert (there.shown, there.served, there.bad) == (["token-1"], len(FILES), [])
    assert not any(word in line for line in said for word in ("token-1", "secret/1", "session=1"))


def test_keys_that_end_are_exchanged_anew_with_the_token_of_then(tmp_path: Path, token: Path) -> None:
    with store() as there:
        there.lasts = timedelta(minutes=4)  # less than what counts as long enough
        there.exchanged = lambda: void(token.write_text(f"token-{len(there.shown) + 1}"))
        get(there, tmp_path / "m", web_identity(there, token), parallel=1)
        assert there.shown == [f"token-{n}" for n in range(1, len(FILES) + 2)], "one for the list, one for each file"
        assert there.bad == []


def test_an_agent_of_the_node_is_asked(tmp_path: Path, token: Path) -> None:
    with store() as there:
        get(there, tmp_path / "m", agent(there.url, token))
        assert (there.shown, there.bad) == (["token-1"], [])


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """One that passes requests on: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            where = urlsplit(self.path)
            far = http.client.HTTPConnection(where.netloc, timeout=30)
            far.request("GET", urlunsplit(("", "", where.path, where.query, "")), headers=dict(self.headers.items()))
            answer = far.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            far.close()

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(Handler) as url:
        yield url, asked


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What a proxy that the environment names was asked for."""
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with proxy() as (url, asked):
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, url)
        yield asked


@pytest.mark.parametrize("way", [agent, lambda url, token: web_identity(Store(url), token)], ids=["agent", "STS"])
def test_no_proxy_sees_what_is_asked_on_the_node(
    tmp_path: Path, token: Path, proxied: list[str], way: Callable[[str, Path], dict[str, str]]
) -> None:
    with store() as there:
        other_name = there.url.replace("127.0.0.1", "localhost")
        get(there, tmp_path / "m", way(other_name, token))
        assert (there.shown, there.bad) == (["token-1"], [])
        assert len(proxied) == 1 + len(FILES) and all(url.startswith(f"{there.url}/bucket/") for url in proxied)


@pytest.mark.parametrize("host", ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]", "localhost", "[::1]"])
def test_each_address_of_an_agent_is_asked_without_a_proxy(
    tmp_path: Path, token: Path, proxied: list[str], host: str
) -> None:
    """Nobody is there: it is looked at where the client would go."""
    url = f"http://{host}/v1/credentials"
    source = Bucket("b/m", region="r", endpoint="http://bucket", keys=identity_of(agent(url, token), "r"))
    with _client(Fetch("s3://b/m", tmp_path), source) as client:
        assert client._transport_for_url(httpx.URL(url)) is client._transport
        assert client._transport_for_url(httpx.URL("http://bucket/")) is not client._transport


@pytest.mark.parametrize("way", [agent, lambda url, token: web_identity(Store(url), token)], ids=["agent", "STS"])
def test_a_token_does_not_follow_a_redirect(
    tmp_path: Path, token: Path, way: Callable[[str, Path], dict[str, str]]
) -> None:
    with store() as there, proxy() as (elsewhere, asked):
        there.leads_to = f"{elsewhere}/agent"
        with pytest.raises(ModelError, match=r"127\.0\.0\.1 answered 307: a redirect, which tokens do not follow"):
            get(there, tmp_path / "m", way(there.url, token))
        assert asked == [] and there.served == 0


def test_a_role_that_is_refused_ends_it_with_the_reason(tmp_path: Path, token: Path) -> None:
    said = WRONG.format(
        ns=NAMESPACE, code="AccessDenied", said="Not authorized to perform sts:AssumeRoleWithWebIdentity"
    )
    with store() as there:
        there.refusals = [(403, said)]
        with pytest.raises(
            ModelError, match=rf"does not give the role {ROLE}: AccessDenied: Not authorized .*trust policy"
        ):
            get(there, tmp_path / "m", web_identity(there, token))
        assert there.tries == 1 and there.served == 0


@pytest.mark.parametrize(
    ("status", "body"),
    [(503, "busy"), (400, WRONG.format(ns=NAMESPACE, code="IDPCommunicationError", said="again"))],
)
def test_what_may_pass_is_tried_again(tmp_path: Path, token: Path, status: int, body: str) -> None:
    with store() as there:
        there.refusals = [(status, body)] * 2
        get(there, tmp_path / "m", web_identity(there, token))
        assert there.tries == 3


@pytest.mark.parametrize(
    ("status", "body", "said"), [(200, "<html/>", "does not answer as STS does"), (404, "", "AWS_ENDPOINT_URL_STS")]
)
def test_something_else_at_that_address(tmp_path: Path, token: Path, status: int, body: str, said: str) -> None:
    with store() as there:
        there.refusals = [(status, body)]
        with pytest.raises(ModelError, match=said):
            get(there, tmp_path / "m", web_identity(there, token))


def test_a_token_that_is_not_there(tmp_path: Path) -> None:
    with (
        store() as there,
        pytest.raises(ModelError, match=r"AWS_WEB_IDENTITY_TOKEN_FILE .*none cannot be read: No such file"),
    ):
        get(there, tmp_path / "m", web_identity(there, tmp_path / "none"))


def test_which_identity_counts() -> None:
    web = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "s"}
    assert identity_of({}, "eu-west-1") is None
    assert identity_of({**web, **keys}, "eu-west-1") == Credentials("id", "s")
    assert isinstance(identity_of(web, "eu-west-1"), Exchanged)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"AWS_ROLE_ARN": ROLE}, "AWS_WEB_IDENTITY_TOKEN_FILE is not set"),
        ({"AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}, "AWS_ROLE_ARN is not set"),
        (
            {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://keys.example/"},
            "must be https:// or an address of the node itself",
        ),
    ],
)
def test_half_an_identity_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        identity_of(environ, "us-east-1")


def test_the_exchange_is_asked_of_the_regions_own_address(token: Path) -> None:
    environ = {"AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token)}
    found = identity_of(environ, "eu-west-1")
    assert isinstance(found, Exchanged)
    request = next(found.current(httpx.Request("GET", "http://bucket", extensions={"timeout": {"read": 7}})))
    assert str(request.url) == "https://sts.eu-west-1.amazonaws.com/"
    assert "token-1" not in str(request.url)
    assert request.extensions["timeout"] == {"read": 7}, "one that hangs is given up too"


@pytest.mark.parametrize("zone", ["", "+00:00", "Z"])
def test_a_time_without_its_zone_is_in_utc(tmp_path: Path, token: Path, zone: str) -> None:
    with store() as there:
        there.zone = zone
        get(there, tmp_path / "m", web_identity(there, token))
        assert (there.shown, there.bad) == (["token-1"], [])


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ({"Expiration": 1_800_000_000}, "its keys end 1800000000, which is no time"),
        ({"Expiration": "soon"}, "its keys end 'soon', which is no time"),
        ({"AccessKeyId": 7}, "answered without keys"),
        ({"SecretAccessKey": None}, "answered without keys"),
        ({"Token": ["t"]}, "a session that is no text"),
    ],
)
def test_an_agent_that_answers_otherwise(odd: dict[str, object], said: str) -> None:
    good = {"AccessKeyId": "id", "SecretAccessKey": "hidden", "Token": "t", "Expiration": "2026-12-01T00:00:00Z"}
    response = httpx.Response(200, content=json.dumps(good | odd), request=httpx.Request("GET", "http://agent/"))
    with pytest.raises(ModelError, match=said) as refused:
        Agent("http://agent/", None).keys(response)
    assert "hidden" not in str(refused.value)
