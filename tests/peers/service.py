"""Programs that run until they are stopped, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peers.snippets import TIMEOUT_S


@contextmanager
def running(*arguments: str, folder: Path, environment: dict[str, str] | None = None) -> Iterator[Service]:
    """Start a program; whatever happens, it does not outlive the block."""
    with subprocess.Popen(
        arguments, cwd=folder, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"} | (environment or {}),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        ended = threading.Timer(2 * TIMEOUT_S, process.kill)
        ended.start()
        try:
            yield Service(process)
        finally:
            ended.cancel()
            process.kill()


class Service:
    """A program that runs until it is stopped."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said: list[str] = []

    def line_with(self, pattern: str) -> re.Match[str]:
        """Wait for a line of its output."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)
            if found := re.search(pattern, line):
                return found
        raise AssertionError("".join(self.said))

    def stop(self, status: int = 0) -> str:
        """Send SIGTERM; return what it said, when it has ended with a status."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        said = "".join(self.said) + rest
        assert self.process.returncode == status, said
        return said
