"""TLS: the server's certificate, which is read again when it changes, and the authorities that clients' certificates need."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

from quire.config import ServeConfig
from quire.errors import ConfigError
from quire.server.watched import Watched


def tls_context(config: ServeConfig, *, clock: Callable[[], float] = time.monotonic) -> ssl.SSLContext | None:
    """None where the server speaks plain HTTP. Raises ConfigError that names the flag.

    A new certificate is for connections from then on; new authorities need a restart.
    """
    certfile, keyfile, authorities = config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs
    if certfile is None:
        for flag, value in (("--ssl-keyfile", keyfile), ("--ssl-ca-certs", authorities)):
            if value is not None:
                raise ConfigError(f"{flag} needs --ssl-certfile")
        return None
    files = [Path(file) for file in (certfile, keyfile) if file is not None]
    watched = Watched("the certificate", files, lambda: _context(certfile, keyfile, authorities), clock=clock)

    def renew(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = watched.value

    first = watched.value
    first.sni_callback = renew
    return first


def _context(certfile: str, keyfile: str | None, authorities: str | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    flags = f"--ssl-certfile {certfile}" + (f" --ssl-keyfile {keyfile}" if keyfile else "")
    try:
        context.load_cert_chain(
            certfile, keyfile, password=lambda: ""
        )  # one that needs a password is an error, not a question
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{flags} cannot be used: {_cause(exc)}") from None
    if authorities is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(authorities)
        except (OSError, ValueError) as exc:
            raise ConfigError(f"--ssl-ca-certs {authorities} cannot be used: {_cause(exc)}") from None
    return context


def _cause(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLError):
        return (exc.reason or "no certificate and key in PEM form").replace("_", " ").lower()
    return (exc.strerror or str(exc)) if isinstance(exc, OSError) else str(exc)
