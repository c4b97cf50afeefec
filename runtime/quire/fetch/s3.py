"""A folder or object in an S3 bucket, or in a store that speaks S3's protocol.

Two kinds of GET are all that is needed, so the signature (AWS Signature Version 4) is made here rather than by the SDK, whose
service descriptions alone are larger than the rest of this program. Whose keys sign is decided in `identity`.
S3 lists no SHA-256: a file SHA256SUMS in the folder, as `sha256sum` writes it, is obeyed; otherwise sizes are checked.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from urllib.parse import parse_qsl, quote, urlsplit
from xml.etree import ElementTree

import httpx

from quire.errors import ModelError
from quire.fetch.identity import Credentials, Exchanged, utc_now
from quire.fetch.remote import Digest, Get, RemoteFile
from quire.fetch.wanted import wanted

SUMS = "SHA256SUMS"
_EMPTY = hashlib.sha256(b"").hexdigest()
_XML = "{*}"


class Signature(httpx.Auth):
    """Signature Version 4 of a request without a body; the time is that of the request."""

    def __init__(self, keys: Credentials | Exchanged, region: str, now: Callable[[], datetime] = utc_now) -> None:
        self._keys = keys
        self._region = region
        self._now = now

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        keys = self._keys if isinstance(self._keys, Credentials) else (yield from self._keys.current(request))
        moment = self._now()
        request.headers["x-amz-date"] = moment.strftime("%Y%m%dT%H%M%SZ")
        request.headers["x-amz-content-sha256"] = _EMPTY
        if keys.session:
            request.headers["x-amz-security-token"] = keys.session
        scope = f"{moment:%Y%m%d}/{self._region}/s3/aws4_request"
        signed = {
            name: " ".join(value.split())
            for name, value in request.headers.items()
            if name in ("host", "range") or name.startswith("x-amz-")
        }
        names = ";".join(sorted(signed))
        canonical = "\n".join(
            (
                request.method,
                request.url.raw_path.partition(b"?")[0].decode(),
                _query(request.url.query.decode()),
                "".join(f"{name}:{signed[name]}\n" for name in sorted(signed)),
                names,
                _EMPTY,
            )
        )
        text = "\n".join(
            ("AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest())
        )
        key = f"AWS4{keys.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        request.headers["Authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={keys.key_id}/{scope},SignedHeaders={names},Signature={signature}"
        )
        yield request


class Bucket:
    """`s3://BUCKET/PREFIX` (a folder) or `s3://BUCKET/KEY.gguf`."""

    def __init__(
        self, path: str, *, region: str, endpoint: str | None, keys: Credentials | Exchanged | None, code: bool = False
    ) -> None:
        bucket, _, key = path.partition("/")
        self.name = f"s3://{path}"
        self.auth: httpx.Auth | None = Signature(keys, region) if keys else None
        self.direct = keys.direct if isinstance(keys, Exchanged) else None
        self._key = key
        self._code = code
        if endpoint:
            self._base = f"{endpoint.rstrip('/')}/{bucket}"
        elif "." in bucket:  # a wildcard certificate covers no second dot
            self._base = f"https://s3.{region}.amazonaws.com/{bucket}"
        else:
            self._base = f"https://{bucket}.s3.{region}.amazonaws.com"

    def files(self, get: Get) -> tuple[RemoteFile, ...]:
        single = self._key.endswith(".gguf")
        prefix = self._key if single or not self._key else f"{self._key.rstrip('/')}/"
        there = dict(self._listed(get, prefix))
        if single:
            if self._key not in there:
                raise ModelError(f"{self.name} is not there")
            size, tag = there[self._key]
            return (RemoteFile(self._key.rpartition("/")[2], self._url(self._key), size, tag=tag),)
        inside = {key.removeprefix(prefix): each for key, each in there.items()}
        sums = _sums(get(self._url(prefix + SUMS)).text) if SUMS in inside else {}
        return tuple(
            RemoteFile(name, self._url(prefix + name), inside[name][0], sums.get(name), inside[name][1])
            for name in wanted(self.name, inside, code=self._code)
        )

    def refusal(self, status: int) -> str:
        if status in (401, 403):
            return (
                "the credentials are missing, wrong or have no right to it (AWS_ACCESS_KEY_ID or AWS_ROLE_ARN, "
                "spec.model.s3.credentialsSecretRef or spec.model.s3.webIdentity)"
            )
        return "check bucket, path, region and endpoint"

    def _url(self, key: str) -> str:
        return f"{self._base}/{quote(key, safe='/-_.~')}"

    def _listed(self, get: Get, prefix: str) -> Iterator[tuple[str, tuple[int, str | None]]]:
        """Keys with size and entity tag."""
        token = ""
        while True:
            query = f"list-type=2&prefix={quote(prefix, safe='-_.~')}"
            if token:
                query = f"continuation-token={quote(token, safe='-_.~')}&{query}"
            try:
                page = ElementTree.fromstring(get(f"{self._base}/?{query}").content)
            except ElementTree.ParseError as exc:
                raise ModelError(
                    f"{urlsplit(self._base).netloc} does not answer as S3 does; check the endpoint"
                ) from exc
            for item in page.iterfind(f"{_XML}Contents"):
                size, tag = int(item.findtext(f"{_XML}Size", "0")), item.findtext(f"{_XML}ETag")
                yield item.findtext(f"{_XML}Key", ""), (size, tag)
            token = page.findtext(f"{_XML}NextContinuationToken", "")
            if not token:
                return


def _query(query: str) -> str:
    pairs = sorted(parse_qsl(query, keep_blank_values=True))
    return "&".join(f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}" for key, value in pairs)


def _sums(text: str) -> dict[str, Digest]:
    """Lines of `HEX  NAME` or `HEX *NAME`."""
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return {rest[1].strip().lstrip("*"): Digest("sha256", rest[0].lower()) for rest in lines if len(rest) == 2}
