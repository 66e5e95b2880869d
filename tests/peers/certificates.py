"""A certificate authority for tests, and certificates that it signs: PEM files made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_DAYS = "30"


def missing_openssl() -> str | None:
    """Return a message if openssl is missing, otherwise None."""
    return None if shutil.which("openssl") else "needs openssl (Debian: openssl)"


class Authority:
    """Signs certificates; `cafile` is the certificate to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.cafile = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", _DAYS, "-subj", f"/CN={name}",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self._key, "-out", self.cafile,
        )  # fmt: skip

    def sign(self, name: str, hosts: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """Make a certificate for a name and some hosts; return its file and the file of its key."""
        key, wish, certificate = (self._folder / f"{name}.{ending}" for ending in ("key", "csr", "crt"))
        _openssl(
            "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}",
            "-addext", f"subjectAltName={hosts}", "-keyout", key, "-out", wish,
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", wish, "-CA", self.cafile, "-CAkey", self._key, "-CAcreateserial",
            "-days", _DAYS, "-copy_extensions", "copy", "-out", certificate,
        )  # fmt: skip
        return certificate, key


def _openssl(*arguments: str | Path) -> None:
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
