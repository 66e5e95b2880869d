"""A PostgreSQL server on this machine, in its own folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.processes import free_port

_PLACES = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _program(name: str) -> str | None:
    found = next((str(place / name) for place in _PLACES if (place / name).exists()), None)
    return found or shutil.which(name)


def missing_postgres() -> str | None:
    """Return what this machine lacks for PostgreSQL, or None."""
    if _program("pg_ctl") is None or _program("initdb") is None:
        return "needs a PostgreSQL server (Debian: apt-get install postgresql)"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "needs PostgreSQL's driver (pip install 'psycopg[binary]')"
    if os.geteuid() == 0 and _user() is None:
        return "a PostgreSQL server does not run as root, and there is no user postgres"
    return None


def _user() -> str | None:
    """Return the user of the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return None


class Postgres:
    """A server that runs while the context is open."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path("/tmp") / f"ottla-postgres-{os.getpid()}-{folder.name}"
        self._data = self._folder / "data"
        self.port = free_port()

    @property
    def dsn(self) -> str:
        """Its address, in libpq's form."""
        return f"host=127.0.0.1 port={self.port} user=shop dbname=postgres"

    @property
    def url(self) -> str:
        """Its address, in SQLAlchemy's form."""
        return f"postgresql+psycopg://shop@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        # Not in pytest's folders, which only root may enter: the server runs as another user.
        self._folder.mkdir(mode=0o755)
        if (user := _user()) is not None:
            shutil.chown(self._folder, user)
        self._run("initdb", "-D", str(self._data), "-U", "shop", "--auth=trust", "--no-sync")
        self._start()
        return self

    def restart(self) -> None:
        """Kill it with all connections, and start it again."""
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        self._start()

    def _start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", options, "-w", "start")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self._folder)

    def _run(self, name: str, *arguments: str) -> None:
        program = _program(name)
        assert program is not None
        done = subprocess.run(
            [program, *arguments], user=_user(), cwd=self._folder, timeout=60, check=False,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr}")
