"""Child processes of tests and benchmarks: started, awaited by their port, and always stopped."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from ottla.zookeeper.apache_server import free_port as free_port


def ports_in_a_row(number: int) -> int:
    """Return the first of some free ports that follow each other."""
    while True:
        first = free_port()
        with ExitStack() as probes:
            try:
                for port in range(first, first + number):
                    probes.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
        return first


class Process:
    """A program that runs while the context is open; its output is written to `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the process is not running"
        return self._process.pid

    def start(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self.command, stdout=output, stderr=output, env=self._env)
        return self

    def wait_for_port(self, port: int, timeout_s: float = 60) -> None:
        """Return once the port accepts connections, or raise with the end of the program's output."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"{self.command[0]} ended early:\n{self.last_words()}")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"port {port} did not open within {timeout_s:g} s:\n{self.last_words()}")

    def last_words(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def stop(self, timeout_s: float = 30) -> None:
        """Stop the program with SIGTERM, and with SIGKILL if it takes too long."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout_s)
        self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
