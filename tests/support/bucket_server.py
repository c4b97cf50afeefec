"""A bucket that knows temporary keys only, with the two services that give them out: STS (AssumeRoleWithWebIdentity) and a node's agent.

It checks every signature as a store does: from the request as it came over the wire.
"""

from __future__ import annotations

import hashlib
import hmac
import http.server
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, quote, unquote, urlsplit

from threaded_server import served

ROLE = "arn:aws:iam::123456789012:role/models"
FILES = {"config.json": b"{}", **{f"model-{n}.safetensors": bytes([n]) * 999 for n in range(6)}}
WRONG = '<ErrorResponse xmlns="{ns}"><Error><Type>Sender</Type><Code>{code}</Code><Message>{said}</Message></Error></ErrorResponse>'
NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass
class Store:
    """STS, an agent and a bucket in one. `lasts` is how long keys do; `refusals` are answered first, status and body."""

    url: str = ""
    lasts: timedelta = timedelta(hours=1)
    zone: str = "Z"
    """Behind the time at which keys end."""
    leads_to: str | None = None
    """Where exchanges are redirected to."""
    refusals: list[tuple[int, str]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """Tokens, one for each exchange that succeeded."""
    tries: int = 0
    served: int = 0
    bad: list[str] = field(default_factory=list)
    """Why a request for a file was refused."""
    exchanged: Callable[[], None] = lambda: None

    def hand_out(self, token: str) -> dict[str, str]:
        self.shown.append(token)
        self.exchanged()
        number, ends = len(self.shown), datetime.now(UTC) + self.lasts
        return {"AccessKeyId": f"ASIA{number}", "SecretAccessKey": f"secret/{number}+=", "SessionToken": f"session={number}",
                "Expiration": f"{ends:%Y-%m-%dT%H:%M:%S}{self.zone}"}  # fmt: skip

    def fault(self, method: str, target: str, headers: dict[str, str]) -> str | None:
        """What is wrong with the signature of a request, read off the wire."""
        scheme, _, rest = headers.get("authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            return "it is not signed"
        parts = dict(part.split("=", 1) for part in rest.split(","))
        key_id, day, region, service, last = parts["Credential"].split("/")
        number, names = key_id.removeprefix("ASIA"), parts["SignedHeaders"].split(";")
        if headers.get("x-amz-security-token") != f"session={number}" or "x-amz-security-token" not in names:
            return "the session is another, or not signed"
        where = urlsplit(target)
        query = "&".join(
            f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}"
            for key, values in sorted(parse_qs(where.query, keep_blank_values=True).items())
            for value in values
        )
        lines = [method, where.path, query, *(f"{name}:{headers[name].strip()}" for name in names), "", ";".join(names),
                 headers["x-amz-content-sha256"]]  # fmt: skip
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], f"{day}/{region}/{service}/{last}", digest])
        key = f"AWS4secret/{number}+=".encode()
        for part in (day, region, service, last):
            key = hmac.digest(key, part.encode(), "sha256")
        return (
            None if hmac.digest(key, text.encode(), "sha256").hex() == parts["Signature"] else "SignatureDoesNotMatch"
        )


@contextmanager
def store() -> Iterator[Store]:
    made = Store()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode(), strict_parsing=True)
            made.tries += 1
            if made.leads_to is not None:
                self.lead(made.leads_to)
                return
            if made.refusals:
                self.answer(*made.refusals.pop(0))
                return
            assert form["Action"] == ["AssumeRoleWithWebIdentity"] and form["Version"] == ["2011-06-15"]
            assert form["RoleArn"] == [ROLE] and form["RoleSessionName"][0]
            inner = "".join(
                f"<{key}>{value}</{key}>" for key, value in made.hand_out(form["WebIdentityToken"][0]).items()
            )
            body = (
                f"<AssumeRoleWithWebIdentityResult><Credentials>{inner}</Credentials></AssumeRoleWithWebIdentityResult>"
            )
            self.answer(
                200,
                f'<AssumeRoleWithWebIdentityResponse xmlns="{NAMESPACE}">{body}</AssumeRoleWithWebIdentityResponse>',
            )

        def do_GET(self) -> None:
            where = urlsplit(self.path)
            if where.path == "/agent" and made.leads_to is not None:
                self.lead(made.leads_to)
                return
            if where.path == "/agent":
                keys = made.hand_out(self.headers.get("Authorization", ""))
                text = ", ".join(f'"{key.replace("SessionToken", "Token")}": "{value}"' for key, value in keys.items())
                self.answer(200, f"{{{text}}}")
                return
            if why := made.fault("GET", self.path, {key.lower(): value for key, value in self.headers.items()}):
                made.bad.append(why)
                self.answer(403, why)
            elif where.path == "/bucket/":
                keys = "".join(
                    f"<Contents><Key>m/{name}</Key><Size>{len(content)}</Size></Contents>"
                    for name, content in FILES.items()
                )
                self.answer(200, f"<ListBucketResult>{keys}</ListBucketResult>")
            else:
                made.served += 1
                self.answer(200, FILES[unquote(where.path).removeprefix("/bucket/m/")])

        def lead(self, there: str) -> None:
            self.send_response(307)
            self.send_header("Location", there)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, status: int, body: str | bytes) -> None:
            content = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(Handler) as made.url:
        yield made
