"""The whole of it: which source, what is missing, is there room, download, mark."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx

from quire.errors import ConfigError, ModelError
from quire.fetch.hub import Hub
from quire.fetch.identity import identity_of, refuse_redirect
from quire.fetch.mark import read_mark
from quire.fetch.progress import Progress
from quire.fetch.remote import RemoteFile, Source
from quire.fetch.retry import Patience, TransientError, checked
from quire.fetch.s3 import Bucket
from quire.fetch.store import Store
from quire.fetch.transfer import Transfer
from quire.fetch.web import TOKEN, Web

TIMEOUT = httpx.Timeout(30.0, connect=10.0, pool=None)
"""Seconds between two bytes, not for the whole: a slow download is no broken one."""


@dataclass(frozen=True)
class Fetch:
    """One model to be had. `attempts` in a row without a byte end it; `jitter_s` is the longest wait before the first request. `code`: the Python
    files of a model too."""

    source: str
    folder: Path
    revision: str = "main"
    endpoint: str | None = None
    region: str = "us-east-1"
    sha256: str | None = None
    ca_bundle: Path | None = None
    parallel: int = 4
    attempts: int = 8
    jitter_s: float = 0.0
    offline: bool = False
    code: bool = False


def fetch(
    wanted: Fetch,
    environ: Mapping[str, str],
    *,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The folder with the whole model; returns at once where it is there already.

    environ: HF_TOKEN for hubs, QUIRE_FETCH_TOKEN for addresses, AWS_* for buckets; proxies are httpx's own business. Raises ConfigError for what was asked for, ModelError for the rest.
    """
    source = source_of(wanted, environ)
    identity = {"source": wanted.source, "revision": wanted.revision if wanted.source.startswith("hf://") else None}
    if wanted.code:
        identity["code"] = "yes"
    if wanted.sha256:
        identity["sha256"] = wanted.sha256
    store = Store(wanted.folder, identity)
    if store.complete():
        say(f"{wanted.source} is in {wanted.folder} already")
        return wanted.folder
    if wanted.offline:
        raise ModelError(f"{wanted.source} is not whole in {wanted.folder}, and nothing may be downloaded (--offline)")
    with store.locked(say), _client(wanted, source) as client:
        if store.complete():
            say(f"{wanted.source} is in {wanted.folder} by now")
            return wanted.folder
        if wanted.jitter_s:
            sleep(random.uniform(0, wanted.jitter_s))
        _download(wanted, source, store, client, Patience(wanted.attempts, say, sleep))
    return wanted.folder


def source_of(wanted: Fetch, environ: Mapping[str, str]) -> Source:
    """Raises ConfigError for a source that is not written as one of those known."""
    scheme, _, rest = wanted.source.partition("://")
    if scheme == "hf" and len(rest.split("/")) >= 2:
        token = environ.get("HF_TOKEN") or None
        return Hub(rest, revision=wanted.revision, endpoint=wanted.endpoint, token=token, code=wanted.code)
    if scheme == "s3" and rest:
        keys = identity_of(environ, wanted.region)
        return Bucket(rest, region=wanted.region, endpoint=wanted.endpoint, keys=keys, code=wanted.code)
    if scheme in ("https", "http") and rest:
        return Web(wanted.source, sha256=wanted.sha256, token=environ.get(TOKEN) or None)
    raise ConfigError(
        f"SOURCE must be hf://ORG/NAME, s3://BUCKET/PATH or https://HOST/PATH.gguf, got {wanted.source!r}"
    )


def wait_until_complete(
    folder: Path,
    timeout_s: float,
    *,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait while somebody else fills the folder. Raises ModelError after `timeout_s` seconds."""
    end, told = clock() + timeout_s, False
    while True:
        mark = read_mark(folder)
        if mark is not None and Store(folder, {}).whole(mark):
            say(f"{folder} is complete: {mark.get('identity')}")
            return
        if clock() >= end:
            raise ModelError(f"{folder} was not filled within {timeout_s:.0f} s; look at the ModelCache and its Job")
        if not told:
            say(f"waiting until {folder} is complete")
            told = True
        sleep(2.0)


def _download(wanted: Fetch, source: Source, store: Store, client: httpx.Client, patience: Patience) -> None:
    def get(url: str) -> httpx.Response:
        def once() -> httpx.Response:
            try:
                response = client.get(url)
            except httpx.HTTPError as exc:
                raise TransientError(f"{httpx.URL(url).host} cannot be reached ({exc or type(exc).__name__})") from exc
            checked(response, source.refusal)
            return response

        return patience(f"list {source.name}", once)

    files = source.files(get)
    missing = store.missing(files)
    store.check_room(missing)
    total = sum(f.size or 0 for f in files)
    patience.say(f"fetching {source.name}: {len(missing)} of {len(files)} files, {total / 1e6:.0f} MB in all")
    progress = Progress(total, patience.say)
    progress.gained(sum(f.size or 0 for f in files if f not in missing))
    progress.begin()
    digests: dict[str, str | None] = {}

    stop = threading.Event()

    def gained(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        progress.gained(count)

    def one(file: RemoteFile) -> None:
        gained(0)
        transfer = Transfer(
            client, source, file, store.folder, patience=patience, gained=gained, check_room=store.check_bytes
        )
        try:
            digests[file.path] = transfer.run()
        except BaseException:
            stop.set()
            raise

    _all(one, missing, wanted.parallel)
    store.finish(files, digests)
    patience.say(f"{source.name} is in {store.folder}: {progress.last()}")


class _Stopped(Exception):
    """Another file failed for good."""


def _all(work: Callable[[RemoteFile], None], files: tuple[RemoteFile, ...], parallel: int) -> None:
    """Largest first. `work` of the others raises _Stopped once one has failed; the failure is raised here."""
    largest_first = sorted(files, key=lambda f: -(f.size or 0))
    with ThreadPoolExecutor(parallel, thread_name_prefix="fetch") as pool:
        running = [pool.submit(work, file) for file in largest_first]
    errors = [error for task in running if (error := task.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, _Stopped)):
        raise error


def _client(wanted: Fetch, source: Source) -> httpx.Client:
    verify = ssl.create_default_context()
    if wanted.ca_bundle is not None:
        try:
            verify.load_verify_locations(cafile=str(wanted.ca_bundle))
        except (OSError, ssl.SSLError) as exc:
            raise ConfigError(f"--ca-bundle {wanted.ca_bundle} cannot be read as PEM certificates: {exc}") from exc
    limits = httpx.Limits(max_connections=wanted.parallel + 1)
    return httpx.Client(
        timeout=TIMEOUT, follow_redirects=True, verify=verify, auth=source.auth, limits=limits,
        headers={"User-Agent": "quire-fetch"}, event_hooks={"response": [refuse_redirect]},
        mounts={} if source.direct is None else {f"all://{source.direct}": None},  # None: the way without a proxy
    )  # fmt: skip
