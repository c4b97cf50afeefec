"""A certificate that is its own authority."""

from __future__ import annotations

import subprocess
from pathlib import Path


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """Key and certificate of `name` for servers on 127.0.0.1, as PEM files."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.crt"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "1",
    ]
    command += ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    return key, certificate
