"""The host's settings for package registries, as files for build secrets. They reach a build and never a layer.

Read: pip's merged configuration (files and PIP_* variables), netrc, proxies, certificate bundles, apt's Acquire options
and credentials. The names of the secrets are those that the Dockerfiles mount; docs/images.md lists them.
Forbidden here: passing any of it as a build argument or an environment variable, which end in the image's history.
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cluster.errors import UsageError
from cluster.run import run
from images.wheels import FindLinks, parse_find_links

SECRET_FOLDER = "/run/secrets"
WHEELS_FOLDER = "/run/wheels"

_PIP_KEYS = (
    "index-url",
    "extra-index-url",
    "trusted-host",
    "proxy",
    "timeout",
    "default-timeout",
    "retries",
    "no-index",
)
_PIP_SECTIONS = ("global", "download", "install", ":env:")
SYSTEM_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
_APT_OPTION = re.compile(
    r"Acquire::(https?|ftp|Check-Date|Check-Valid-Until|Retries|ForceIPv4|AllowInsecureRepositories)\b"
)
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "no_proxy")


@dataclass(frozen=True)
class HostSettings:
    """Secrets by id, and the folders of wheels. `repr` shows no secret."""

    secrets: Mapping[str, bytes] = field(repr=False)
    find_links: FindLinks


def host_pip() -> dict[str, str]:
    """pip's settings of this process's user, by option."""
    return read_pip_config(run([sys.executable, "-m", "pip", "config", "list"], deadline_s=60))


def read_host(pip: Mapping[str, str], sources: str | None) -> HostSettings:
    """All settings of this process's user. `sources`: lines for apt in the build, or None to use those of the base image."""
    find_links = parse_find_links(pip.get("find-links", ""))
    bundle = _ca_bundle(pip)
    secrets = {"pip_conf": render_pip_conf(pip, find_links, os.environ, with_bundle=bundle is not None).encode()}
    if bundle is not None:
        secrets["ca_bundle"] = bundle
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    if netrc.is_file():
        secrets["netrc"] = netrc.read_bytes()
    options = run(["apt-config", "dump"], deadline_s=60) if shutil.which("apt-config") else ""
    credentials = _apt_credentials()
    if credentials:
        secrets["apt_auth"] = credentials
    if sources is not None:
        secrets["apt_sources"] = sources.encode()
    secrets["apt_conf"] = render_apt_conf(options, os.environ, secrets.keys()).encode()
    return HostSettings(secrets, find_links)


def read_pip_config(listing: str) -> dict[str, str]:
    """`pip config list` -> key: value, with the precedence that pip gives its sections."""
    found: dict[tuple[str, str], str] = {}
    for line in listing.splitlines():
        if match := re.fullmatch(r"(:env:|[\w-]+)\.([\w-]+)=(.*)", line.strip()):
            section, key, quoted = match.groups()
            found[section, key] = str(ast.literal_eval(quoted))
    return {key: value for section in _PIP_SECTIONS for (where, key), value in found.items() if where == section}


def render_pip_conf(
    pip: Mapping[str, str], find_links: FindLinks, environ: Mapping[str, str], *, with_bundle: bool
) -> str:
    """pip.conf for inside the build: the registry settings only, with paths as the build sees them."""
    if "client-cert" in pip:
        raise UsageError(
            "pip's client-cert cannot be passed to an image build; use an index that takes credentials from netrc"
        )
    settings = {key: pip[key] for key in _PIP_KEYS if key in pip}
    proxy = _proxy(environ, "https_proxy") or _proxy(environ, "http_proxy")
    if proxy and "proxy" not in settings:
        settings["proxy"] = proxy
    if with_bundle:
        settings["cert"] = f"{SECRET_FOLDER}/ca_bundle"
    links = [*([WHEELS_FOLDER] if find_links.files else []), *find_links.urls]
    if links:
        settings["find-links"] = "\n".join(links)
    lines = ["[global]"]
    for key, value in settings.items():
        first, *rest = value.split("\n")
        lines += [f"{key} = {first}", *(f"    {line.strip()}" for line in rest if line.strip())]
    return "\n".join(lines) + "\n"


def render_apt_conf(options: str, environ: Mapping[str, str], secrets: Container[str]) -> str:
    """apt.conf for inside the build, from `apt-config dump` of the host and the secrets that go with it."""
    lines = [
        line
        for line in options.splitlines()
        if _APT_OPTION.match(line) and not re.search(r"::(CaInfo|SslCert|SslKey)\b", line)
    ]
    for scheme in ("http", "https"):
        proxy = _proxy(environ, f"{scheme}_proxy")
        if proxy and not any(line.startswith(f"Acquire::{scheme}::Proxy ") for line in lines):
            lines.append(f'Acquire::{scheme}::Proxy "{proxy}";')
    if "ca_bundle" in secrets:
        lines.append(f'Acquire::https::CaInfo "{SECRET_FOLDER}/ca_bundle";')
    if "apt_auth" in secrets:
        lines.append(f'Dir::Etc::netrc "{SECRET_FOLDER}/apt_auth";')
    if "apt_sources" in secrets:
        lines += [f'Dir::Etc::sourcelist "{SECRET_FOLDER}/apt_sources";', 'Dir::Etc::sourceparts "/dev/null";']
    lines.append('APT::Sandbox::User "root";')  # secrets are readable by root alone
    return "\n".join(lines) + "\n"


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of an engine that builds: without proxies, which podman and buildah would hand on to every RUN."""
    return {name: value for name, value in environ.items() if name.lower() not in _PROXY_VARIABLES}


def debian_sources(suite: str) -> tuple[str, ...]:
    """apt source lines for `suite`, from the mirrors of a Debian host; empty on any other host."""
    release = Path("/etc/os-release")
    values = (
        dict(line.split("=", 1) for line in release.read_text().splitlines() if "=" in line) if release.exists() else {}
    )
    codename = values.get("VERSION_CODENAME", "").strip('"')
    if values.get("ID", "").strip('"') != "debian" or not codename or shutil.which("apt-get") is None:
        return ()
    listing = run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    )
    return sources_for(listing, codename, suite)


def sources_for(listing: str, codename: str, suite: str) -> tuple[str, ...]:
    """`apt-get indextargets` lines -> source lines of the same mirrors for another suite, Debian's own suites only.

    Left out: discs, folders and mirror lists of the host (cdrom:, file:, mirror+file:), which a build cannot see.
    """
    lines: dict[str, None] = {}
    for line in listing.splitlines():
        uri, release, component = line.rsplit(" ", 2)  # the name of a disc holds spaces
        pocket = release.removeprefix(codename)
        own = release.startswith(codename) and pocket in {"", "-updates", "-security"} and component == "main"
        if own and uri.startswith(("http://", "https://")):
            lines[f"deb {uri} {suite}{pocket} main"] = None
    return tuple(lines)


def _ca_bundle(pip: Mapping[str, str]) -> bytes | None:
    """The bundle that pip or the system uses here, or None where there is neither (pip then brings its own)."""
    candidates = [("pip's cert", pip.get("cert"))] + [(name, os.environ.get(name)) for name in _CA_VARIABLES]
    for name, value in candidates:
        if value:
            path = Path(value).expanduser()
            if not path.is_file():
                raise UsageError(f"{name} is {value}, which is not a file; correct or unset it")
            return path.read_bytes()
    return SYSTEM_BUNDLE.read_bytes() if SYSTEM_BUNDLE.is_file() else None


def _proxy(environ: Mapping[str, str], name: str) -> str | None:
    return environ.get(name) or environ.get(name.upper()) or None


def _apt_credentials() -> bytes:
    parts = [Path("/etc/apt/auth.conf"), *sorted(Path("/etc/apt/auth.conf.d").glob("*.conf"))]
    return b"\n".join(path.read_bytes() for path in parts if path.is_file())
