"""The host's package settings as build secrets: what pip and apt in the build see, and what never leaves."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from cluster.errors import UsageError
from images import host
from images.host import (
    HostSettings,
    build_environment,
    host_pip,
    read_host,
    read_pip_config,
    render_apt_conf,
    render_pip_conf,
    sources_for,
)
from images.wheels import FindLinks

NO_LINKS = FindLinks((), ())


def pip_settings(text: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()  # as pip reads it
    parser.read_string(text)
    return dict(parser["global"])


def test_pips_own_precedence() -> None:
    listing = ":env:.index-url='https://env/'\nglobal.index-url='https://file/'\ninstall.timeout='9'\nglobal.timeout='5'\nfreeze.x='1'\n"
    assert read_pip_config(listing) == {"index-url": "https://env/", "timeout": "9"}


def test_credentials_and_percent_signs_survive() -> None:
    pip = {"index-url": "https://u:p%40ss@index.test/simple", "extra-index-url": "https://a.test/\nhttps://b.test/"}
    settings = pip_settings(render_pip_conf(pip, NO_LINKS, {}, with_bundle=False))
    assert settings["index-url"] == pip["index-url"]
    assert settings["extra-index-url"].split() == ["https://a.test/", "https://b.test/"]


def test_only_registry_settings_go_in() -> None:
    pip = {
        "target": "/somewhere",
        "user": "true",
        "find-links": "/home/me/wheels",
        "cert": "/home/me/ca.pem",
        "retries": "2",
    }
    links = FindLinks((Path("/home/me/wheels/a.whl"),), ("https://links.test/",))
    text = render_pip_conf(pip, links, {}, with_bundle=True)
    assert pip_settings(text) == {
        "retries": "2",
        "cert": "/run/secrets/ca_bundle",
        "find-links": "/run/wheels\nhttps://links.test/",
    }
    assert "/home" not in text


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [({"HTTPS_PROXY": "http://p:1"}, "http://p:1"), ({"http_proxy": "http://p:2"}, "http://p:2"), ({}, None)],
)
def test_a_proxy_of_the_environment_reaches_pip(environ: dict[str, str], proxy: str | None) -> None:
    assert pip_settings(render_pip_conf({}, NO_LINKS, environ, with_bundle=False)).get("proxy") == proxy
    with_own = render_pip_conf({"proxy": "http://own"}, NO_LINKS, environ, with_bundle=False)
    assert pip_settings(with_own)["proxy"] == "http://own"


def test_a_client_certificate_is_refused_with_a_remedy() -> None:
    with pytest.raises(UsageError, match=r"client-cert cannot be passed.*netrc"):
        render_pip_conf({"client-cert": "/x.pem"}, NO_LINKS, {}, with_bundle=False)


def test_apt_gets_proxies_and_the_secrets_that_exist() -> None:
    dump = (
        'Acquire::http::Proxy "http://apt:3142";\nAcquire::Check-Date "false";\nAcquire::https::CaInfo "/home/me/ca";\n'
        'Acquire::IndexTargets::deb "x";\nDPkg::Post-Invoke:: "rm -rf /";\n'
    )
    conf = render_apt_conf(
        dump, {"http_proxy": "http://env:1", "https_proxy": "http://env:2"}, {"apt_sources", "ca_bundle"}
    )
    assert conf.splitlines() == [
        'Acquire::http::Proxy "http://apt:3142";',
        'Acquire::Check-Date "false";',
        'Acquire::https::Proxy "http://env:2";',
        'Acquire::https::CaInfo "/run/secrets/ca_bundle";',
        'Dir::Etc::sourcelist "/run/secrets/apt_sources";',
        'Dir::Etc::sourceparts "/dev/null";',
        'APT::Sandbox::User "root";',
    ]
    assert "apt_auth" not in conf


def test_proxies_do_not_reach_the_engine() -> None:
    environ = {"PATH": "/bin", "HTTP_PROXY": "x", "https_proxy": "y", "No_Proxy": "z", "DOCKER_HOST": "d"}
    assert build_environment(environ) == {"PATH": "/bin", "DOCKER_HOST": "d"}


def test_sources_are_the_hosts_mirrors_for_debians_own_suites() -> None:
    listing = (
        "http://mirror.test/debian/ trixie main\n"
        "http://mirror.test/debian/ trixie-updates main\n"
        "http://mirror.test/debian/ trixie-backports main\n"
        "http://mirror.test/debian/ trixie contrib\n"
        "http://mirror.test/security/ trixie-security main\n"
        "https://vendor.test/apt/ nodistro main\n"
        "https://vendor.test/debian/ trixie stable\n"
        "cdrom:[Debian GNU/Linux 13.1.0 _Trixie_ - Official amd64 NETINST with firmware]/ trixie main\n"
        "file:/srv/mirror/debian/ trixie main\n"
        "mirror+file:/etc/apt/mirrors/debian.list/ trixie main\n"
    )
    assert sources_for(listing, "trixie", "bookworm") == (
        "deb http://mirror.test/debian/ bookworm main",
        "deb http://mirror.test/debian/ bookworm-updates main",
        "deb http://mirror.test/security/ bookworm-security main",
    )


def test_the_whole_host_is_read_and_its_repr_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle, netrc = tmp_path / "ca.pem", tmp_path / "netrc"
    bundle.write_text("CERTIFICATE")
    netrc.write_text("machine index.test login me password hunter2")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hunter2@index.test/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    settings = read_host(host_pip(), "deb http://mirror.test/debian bookworm main\n")
    assert settings.secrets["ca_bundle"] == b"CERTIFICATE"
    assert b"hunter2" in settings.secrets["netrc"]
    assert b"https://me:hunter2@index.test/simple" in settings.secrets["pip_conf"]
    assert settings.secrets["apt_sources"].startswith(b"deb http://mirror.test")
    assert "hunter2" not in repr(settings)


def test_a_bundle_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "gone.pem"))
    with pytest.raises(UsageError, match=r"pip's cert is .*gone\.pem, which is not a file; correct or unset it"):
        read_host(host_pip(), None)


def test_without_a_bundle_pip_brings_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "SYSTEM_BUNDLE", tmp_path / "gone")
    assert host._ca_bundle({}) is None
    assert HostSettings({}, NO_LINKS).secrets == {}
