"""Access to a coordinator that asks for a secret: the secret's file, and where the coordinator listens.

A broker that brings its own coordinator keeps both beside its data, readable by its user only, so that no
other user of the machine can change the cluster through the port. They are sent as ZooKeeper's `digest`
credentials: `addauth digest ottla:SECRET` in Apache's shell.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from ottla.zookeeper.environment import new_secret
from ottla.zookeeper.errors import Unavailable

DIRECTORY: Final = "coordinator"
"""The directory of a broker's own coordinator in one of its log directories."""

SECRET_FILE: Final = "secret"
ADDRESS_FILE: Final = "address"
_USER: Final = "ottla"
_PRIVATE: Final = 0o600


class Access(NamedTuple):
    """The arguments of `KazooSession`: the address, and the credentials of each connection."""

    connect_string: str
    credentials: tuple[tuple[str, str], ...]


def digest_of(secret: str) -> bytes:
    """Return the identity that a client authenticates with, in the scheme `digest`."""
    return f"{_USER}:{secret}".encode()


def credentials(secret: str) -> tuple[tuple[str, str], ...]:
    """Return the credentials of a connection, as `KazooSession` takes them."""
    return (("digest", digest_of(secret).decode()),)


def read_or_make_secret(directory: Path) -> str:
    """Return the secret of a coordinator's directory; make directory and secret if they are missing."""
    path = directory / SECRET_FILE
    try:
        if kept := path.read_text().strip():
            return kept
    except FileNotFoundError:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = new_secret()
    _write_privately(path, secret)
    return secret


def write_address(directory: Path, connect_string: str) -> None:
    """Note where the coordinator of `directory` listens, for `access_to`."""
    _write_privately(directory / ADDRESS_FILE, connect_string)


def access_to(directory: Path) -> Access:
    """Return the access to the coordinator of a broker's data directory, or of its own directory.

    Raises Unavailable where none has been started, and OSError when the secret is not this user's.
    """
    for place in (directory / DIRECTORY, directory):
        if (place / ADDRESS_FILE).exists():
            address, secret = (place / ADDRESS_FILE).read_text(), (place / SECRET_FILE).read_text()
            return Access(address.strip(), credentials(secret.strip()))
    raise Unavailable(str(directory), "no broker with its own coordinator has been started on it")


def _write_privately(path: Path, line: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(f"{line}\n")
        file.flush()
        os.fsync(descriptor)
    os.rename(temporary, path)
