"""A broker that notes the turns of its event loop which took the processor for 5 ms or longer.

A turn is what happens between two waits for sockets. Only the time that the loop's own thread computes is
counted: that of other processes, which this machine also runs, says nothing of the broker. The stack of a
turn that takes 25 ms is noted in a file beside, and again after each further 25 ms.

python tests/system/measured_broker.py FILE start --set listeners=PLAINTEXT://127.0.0.1:9092
"""

from __future__ import annotations

import asyncio
import selectors
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ottla.broker.testing import BrokerProcess

NOTED_MS = 5.0
STACK_EVERY_MS = 25.0
SAMPLE_EVERY_S = 0.005
LONG_MS = 50.0


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

    @property
    def stacks_file(self) -> Path:
        return stacks_beside(self.turns_file)

    def _command(self, flags: list[str]) -> list[str]:
        return [self.python, __file__, str(self.turns_file), "start", "--no-uvloop", *flags]

    def turns_since(self, began_s: float) -> Turns:
        """Return the turns since a time of the monotonic clock."""
        lines = (line.split() for line in self.turns_file.read_text().splitlines())
        found = [float(took_ms) for ended_s, took_ms in lines if float(ended_s) >= began_s]
        return Turns(max(found, default=NOTED_MS), sum(took_ms > 10 for took_ms in found))

    def longest_stacks_since(self, began_s: float) -> list[str]:
        """Return stacks of turns of `LONG_MS` and longer since a time of the monotonic clock."""
        lines = self.stacks_file.read_text().splitlines() if self.stacks_file.exists() else []
        noted = [line.split(maxsplit=2) for line in lines]
        longest: dict[str, float] = {}
        for ended_s, took_ms, stack in noted:
            if float(ended_s) >= began_s and float(took_ms) >= LONG_MS:
                longest[stack] = max(longest.get(stack, 0), float(took_ms))
        stacks = sorted(longest, key=lambda stack: -longest[stack])
        return [f"{longest[stack]:.0f} ms: {stack}" for stack in stacks[:5]]


def stacks_beside(turns_file: Path) -> Path:
    return turns_file.with_name(f"{turns_file.name}.stacks")


class _TurnSelector(selectors.DefaultSelector):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = Path(path).open("a", buffering=1)  # noqa: SIM115 - as long as the process
        self.began_s: float | None = time.thread_time()
        """The thread's time when the turn began; None while the loop waits."""

    def select(self, timeout: float | None = None) -> Any:
        took_ms = (time.thread_time() - (self.began_s or 0)) * 1_000
        self.began_s = None
        if took_ms >= NOTED_MS:
            self._file.write(f"{time.monotonic():.3f} {took_ms:.2f}\n")
        ready = super().select(timeout)
        self.began_s = time.thread_time()
        return ready


class _Stacks(threading.Thread):
    """Notes where the loop's thread is in turns that take long."""

    def __init__(self, selector: _TurnSelector, path: Path) -> None:
        super().__init__(name="stacks", daemon=True)
        self._selector = selector
        self._file = path.open("a", buffering=1)
        self._watched = threading.get_ident()
        self._clock = time.pthread_getcpuclockid(self._watched)

    def run(self) -> None:
        began_s: float | None = None
        due_ms = STACK_EVERY_MS
        while True:
            time.sleep(SAMPLE_EVERY_S)
            if self._selector.began_s != began_s:
                began_s, due_ms = self._selector.began_s, STACK_EVERY_MS
            if began_s is None:
                continue
            took_ms = (time.clock_gettime(self._clock) - began_s) * 1_000
            if took_ms >= due_ms:
                frame = sys._current_frames().get(self._watched)
                self._file.write(f"{time.monotonic():.3f} {took_ms:.0f} {_text_of(frame)}\n")
                due_ms = took_ms + STACK_EVERY_MS


def _text_of(frame: FrameType | None) -> str:
    """Return the calls of a stack in one line, the innermost first, as far as they are of the broker."""
    calls: list[str] = []
    while frame is not None:
        code = frame.f_code
        if not calls or "ottla" in code.co_filename:
            calls.append(f"{Path(code.co_filename).stem}.{code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(calls[:14])


class _Policy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        selector = _TurnSelector(sys.argv[0])
        _Stacks(selector, stacks_beside(Path(sys.argv[0]))).start()
        return asyncio.SelectorEventLoop(selector)


if __name__ == "__main__":
    from ottla.broker.server.cli import broker

    del sys.argv[0]  # what is left begins with the file
    asyncio.set_event_loop_policy(_Policy())
    broker(prog_name="ottla broker")
