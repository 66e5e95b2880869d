"""Access to a coordinator that asks for a secret: the secret's file, and where the coordinator listens.

A coordinator keeps both beside its data, readable by its user only, so that no other user of the machine can
read or change the cluster through the port. The secret is the password of the user `ottla`: sent as
ZooKeeper's `digest` credentials, or proved by SASL with DIGEST-MD5. For Apache's tools, which know the latter
alone, a login file for JAAS lies there too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import stat
from pathlib import Path
from typing import Final, NamedTuple

from ottla.zookeeper.environment import new_secret
from ottla.zookeeper.errors import Unavailable, UnsafeSecret

DIRECTORY: Final = "coordinator"
"""The directory of a broker's own coordinator in one of its log directories."""

SECRET_FILE: Final = "secret"
ADDRESS_FILE: Final = "address"
JAAS_FILE: Final = "jaas.conf"
USER: Final = "ottla"
_PRIVATE: Final = 0o600
_OTHERS: Final = 0o077
_MAX_BYTES: Final = 4_096
_SECRET: Final = re.compile(r"[0-9A-Za-z+/=_.~-]{16,512}")
_POLL_S: Final = 0.05


class Access(NamedTuple):
    """The arguments of `KazooSession`: the address, and the credentials of each connection."""

    connect_string: str
    credentials: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        return f"Access({self.connect_string!r})"


def digest_of(secret: str) -> bytes:
    """Return the identity that a client authenticates with, in the scheme `digest`."""
    return f"{USER}:{secret}".encode()


def is_same(given: bytes, secret: bytes) -> bool:
    """Compare secrets in a time that does not depend on where they differ."""
    import hmac  # for clients that show one

    return hmac.compare_digest(given, secret)


def credentials(secret: str) -> tuple[tuple[str, str], ...]:
    """Return the credentials of a connection, as `KazooSession` takes them."""
    return (("digest", digest_of(secret).decode()),)


def jaas_of(secret: str) -> str:
    """Return the login of Apache's tools, for `-Djava.security.auth.login.config`."""
    module = "org.apache.zookeeper.server.auth.DigestLoginModule"
    return f'Client {{\n  {module} required\n  username="{USER}"\n  password="{secret}";\n}};\n'


def is_directory(connect: str) -> bool:
    """Whether a `zookeeper.connect` is a coordinator's directory: it begins with `/`, `.` or `~`."""
    return connect.startswith(("/", ".", "~"))


def read_or_make_secret(directory: Path) -> str:
    """Return the secret of a coordinator's directory; make directory and files if they are missing.

    Raises UnsafeSecret where others can read the secret, or replace it.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _keep_out_others(directory)
    kept = _secret_in(directory)
    secret = kept or new_secret()
    if kept is None:
        _write_privately(directory / SECRET_FILE, f"{secret}\n")
    _write_privately(directory / JAAS_FILE, jaas_of(secret))
    return secret


def write_address(directory: Path, connect_string: str) -> None:
    """Note where the coordinator of `directory` listens, for `access_to`."""
    _write_privately(directory / ADDRESS_FILE, f"{connect_string}\n")


def access_to(directory: Path) -> Access:
    """Return the access to the coordinator of a broker's data directory, or of its own directory.

    Raises Unavailable where none has been started, UnsafeSecret for files that others can read or replace,
    and OSError when the secret is not this user's.
    """
    for place in (directory / DIRECTORY, directory):
        if (place / ADDRESS_FILE).exists():
            address = _read_privately(place / ADDRESS_FILE)
            secret = _secret_in(place)
            if secret is None:
                raise Unavailable(str(place), f"{SECRET_FILE} is missing: start the coordinator again")
            return Access(_checked_address(address, place), credentials(secret))
    raise Unavailable(str(directory), "no broker with its own coordinator has been started on it")


async def access_for(connect: str, within_s: float) -> Access:
    """Return the access to a `zookeeper.connect`: addresses, or the directory of an embedded coordinator.

    Raises as `access_to` where the coordinator of a directory does not start in time.
    """
    return (
        await access_once_started(_expanded(connect), within_s)
        if is_directory(connect)
        else Access(connect, ())
    )


async def access_once_started(directory: Path, within_s: float) -> Access:
    """Return the access to a coordinator that may be starting now; raises as `access_to`."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + within_s
    while True:
        try:
            return access_to(directory)
        except Unavailable:
            if loop.time() >= deadline_s:
                raise
        await asyncio.sleep(_POLL_S)


def _expanded(directory: str) -> Path:
    return Path(directory).expanduser()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _keep_out_others(directory: Path) -> None:
    """Close a directory of this user, as older coordinators left it; refuse another user's."""
    facts = directory.stat()
    if facts.st_uid not in (os.geteuid(), 0):
        raise UnsafeSecret(
            str(directory), f"it belongs to user {facts.st_uid}: chown it to the broker's user"
        )
    if facts.st_mode & _OTHERS and facts.st_uid == os.geteuid():
        directory.chmod(stat.S_IMODE(facts.st_mode) & ~_OTHERS)


def _secret_in(directory: Path) -> str | None:
    """Return the secret of a directory, None without one. Raises UnsafeSecret."""
    path = directory / SECRET_FILE
    try:
        kept = _read_privately(path)
    except FileNotFoundError:
        return None
    if kept and not _SECRET.fullmatch(kept):
        advice = "delete it, and the coordinator makes another at its next start"
        raise UnsafeSecret(str(path), f"it holds no secret of 16 to 512 letters and digits: {advice}")
    return kept or None


def _checked_address(address: str, place: Path) -> str:
    """Return a coordinator's address. Raises Unavailable for one of another machine."""
    host = address.rpartition(":")[0].strip("[]")
    if not is_loopback(host):
        raise Unavailable(str(place / ADDRESS_FILE), "it is no address of a coordinator: start that again")
    return address


def _read_privately(path: Path) -> str:
    """Return a file's one line. Raises UnsafeSecret for a link, or where others can read or write it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if path.is_symlink():
            raise UnsafeSecret(str(path), "it is a symbolic link: put the file itself there") from error
        raise
    try:
        if why := _why_unsafe(os.fstat(descriptor)):
            raise UnsafeSecret(str(path), why)
        return os.read(descriptor, _MAX_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def _why_unsafe(facts: os.stat_result) -> str | None:
    if not stat.S_ISREG(facts.st_mode):
        return "it is not a file: remove it"
    if os.geteuid() not in (facts.st_uid, 0) and facts.st_uid != 0:
        return f"it belongs to user {facts.st_uid}: chown it to the broker's user"
    if facts.st_mode & _OTHERS:
        mode = stat.S_IMODE(facts.st_mode)
        return f"others can read or write it (mode {mode:04o}): chmod 600 it, or delete it for a new secret"
    return None


def _write_privately(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE)
    with open(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(descriptor)
    os.rename(temporary, path)
