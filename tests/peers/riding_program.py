"""A client program that writes and reads while brokers restart, and what it printed.

The program takes SERVERS TOPIC GROUP; `tests/interop/java/RidingClient.java` says what it does.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Final, Self

BOUND_S: Final = 150


class RidingProgram:
    """Runs while the context is open. `wrote` and `read` have the numbers by partition, in order."""

    def __init__(self, command: Sequence[str], *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.command = [*command, *arguments]
        self.wrote: dict[int, list[int]] = defaultdict(list)
        self.read: dict[int, list[int]] = defaultdict(list)
        self.longest_s = {"wrote": 0.0, "read": 0.0}
        """The longest time between two lines of a kind."""
        self._env = env
        self._said_at_s: dict[str, float] = {}
        self._others: list[str] = []
        self._reader = threading.Thread(target=self._take_lines)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._env,
        )  # fmt: skip
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def read_count(self) -> int:
        return sum(map(len, self.read.values()))

    @property
    def written_count(self) -> int:
        return sum(map(len, self.wrote.values()))

    def wait_until_read(self, count: int) -> None:
        """Return once so many records were read; raise what the program said when it ended."""
        deadline_s = time.monotonic() + BOUND_S
        while self.read_count < count:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise AssertionError(f"{self.read_count} of {count} records were read: {self.last_words()}")
            time.sleep(0.05)

    def finish(self) -> None:
        """Make the program stop writing, read the rest, and end without an error."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(BOUND_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.last_words()}") from None
        self._reader.join()
        assert status == 0, self.last_words()

    def last_words(self) -> str:
        return "\n".join(self._others[-20:])

    def _take_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, *numbers = line.split()[:3] or [""]
            if kind in ("wrote", "read") and len(numbers) == 2:
                self._took(kind, int(numbers[0]), int(numbers[1]))
            else:
                self._others.append(line.rstrip())

    def _took(self, kind: str, partition: int, number: int) -> None:
        now_s = time.monotonic()
        gap_s = now_s - self._said_at_s.get(kind, now_s)
        self.longest_s[kind] = max(self.longest_s[kind], gap_s)
        self._said_at_s[kind] = now_s
        (self.wrote if kind == "wrote" else self.read)[partition].append(number)
