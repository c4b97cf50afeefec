"""`quire fetch` and `quire fetch-wait`: what the operator's init containers and Jobs run, and what an air-gapped folder is filled with."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from quire.errors import ConfigError


def fetch(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="hf://ORG/NAME[/FILE.gguf], s3://BUCKET/PATH or https://HOST/PATH.gguf"),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="FOLDER", help="the folder that holds this model and nothing else")
    ],
    revision: Annotated[str, typer.Option(metavar="REV", help="branch, tag or commit of a hub model")] = "main",
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="a mirror of the hub, or a store that speaks S3; default: HF_ENDPOINT"),
    ] = None,
    region: Annotated[str, typer.Option(metavar="NAME", help="region of the bucket")] = "us-east-1",
    sha256: Annotated[str | None, typer.Option(metavar="HEX", help="digest of the file of an https:// source")] = None,
    ca_bundle: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM certificates to trust beside the system's")
    ] = None,
    parallel: Annotated[int, typer.Option(min=1, max=32, metavar="N", help="files at a time")] = 4,
    attempts: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="tries in a row that bring nothing before it gives up")
    ] = 8,
    jitter: Annotated[
        float, typer.Option(min=0, max=3600, metavar="SECONDS", help="longest random wait before the first request")
    ] = 0.0,
    offline: Annotated[bool, typer.Option("--offline", help="download nothing; fail unless all is there")] = False,
    code: Annotated[bool, typer.Option("--code", help="a model's Python files too, for --trust-remote-code")] = False,
) -> None:
    """Bring a model's files into a folder, whole and checked.

    Resumes what was interrupted; does nothing where all is there. Tokens and keys come from HF_TOKEN (hubs),
    QUIRE_FETCH_TOKEN (addresses) and AWS_* (buckets), proxies from HTTPS_PROXY and NO_PROXY.
    """
    from quire.fetch.fetch import Fetch
    from quire.fetch.fetch import fetch as run

    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise ConfigError(f"--sha256 must be 64 hexadecimal digits in lower case, got {sha256!r}")
    if sha256 is not None and not source.startswith(("https://", "http://")):
        raise ConfigError("--sha256 is for https:// sources; hubs tell their own digests, buckets in a file SHA256SUMS")
    wanted = Fetch(
        source,
        to,
        revision,
        endpoint,
        region,
        sha256,
        ca_bundle,
        parallel,
        attempts,
        jitter_s=jitter,
        offline=offline,
        code=code,
    )
    print(run(wanted, os.environ, say=_say))


def fetch_wait(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="a folder that another `quire fetch` fills")],
    timeout: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="how long it may take")] = 7200.0,
) -> None:
    """Wait until a folder holds a whole model."""
    from quire.fetch.fetch import wait_until_complete

    wait_until_complete(folder, timeout, say=_say)


def _say(line: str) -> None:
    print(f"quire: fetch: {line}", file=sys.stderr, flush=True)
