"""A broker that notes the turns of its event loop which took the processor for 5 ms or longer.

A turn is what happens between two waits for sockets. Only the time that the loop's own thread computes is
counted: that of other processes, which this machine also runs, says nothing of the broker.

python tests/system/measured_broker.py FILE start --set listeners=PLAINTEXT://127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from ottla.broker.testing import BrokerProcess

NOTED_MS = 5.0


class Turns(NamedTuple):
    """The turns of a loop in a span of time."""

    longest_ms: float
    """`NOTED_MS` where all were shorter."""
    over_10_ms: int


class MeasuredBroker(BrokerProcess):
    """A broker in a process of its own whose long turns are in a file."""

    @property
    def turns_file(self) -> Path:
        return self.data_dir / "turns"

    def _command(self, flags: list[str]) -> list[str]:
        return [self.python, __file__, str(self.turns_file), "start", "--no-uvloop", *flags]

    def turns_since(self, began_s: float) -> Turns:
        """Return the turns since a time of the monotonic clock."""
        lines = (line.split() for line in self.turns_file.read_text().splitlines())
        found = [float(took_ms) for ended_s, took_ms in lines if float(ended_s) >= began_s]
        return Turns(max(found, default=NOTED_MS), sum(took_ms > 10 for took_ms in found))


class _TurnSelector(selectors.DefaultSelector):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - as long as the process
        self._began_s = time.thread_time()

    def select(self, timeout: float | None = None) -> Any:
        took_ms = (time.thread_time() - self._began_s) * 1_000
        if took_ms >= NOTED_MS:
            self._file.write(f"{time.monotonic():.3f} {took_ms:.2f}\n")
        ready = super().select(timeout)
        self._began_s = time.thread_time()
        return ready


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.SelectorEventLoop(_TurnSelector(sys.argv[0]))


if __name__ == "__main__":
    from ottla.broker.server.cli import broker

    del sys.argv[0]  # what is left begins with the file
    asyncio.set_event_loop_policy(_Policy())
    broker(prog_name="ottla broker")
