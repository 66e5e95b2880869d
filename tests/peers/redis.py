"""A Redis server on this machine, in its own folder."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from peers.processes import Process, free_port


def missing_redis() -> str | None:
    """Return what this machine lacks for Redis, or None."""
    if shutil.which("redis-server") is None:
        return "needs a Redis server (Debian: apt-get install redis-server)"
    try:
        import redis  # noqa: F401
    except ImportError:
        return "needs Redis's client (pip install redis)"
    return None


class Redis:
    """A server that runs while the context is open; it writes every command to its file before it answers."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self._folder = folder
        self.port = port or free_port()
        settings = {
            "port": self.port, "bind": "127.0.0.1", "dir": str(folder), "save": "",
            "appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
        self._process = Process(["redis-server", *options], folder / "redis.log")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._process.start()
        self._process.wait_for_port(self.port)
        return self

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()

    def command(self, *words: str) -> str:
        """Send one command over a connection of its own; return the answer as the server wrote it."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            connection.sendall((" ".join(words) + "\r\n").encode())
            return connection.recv(65_536).decode()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()
